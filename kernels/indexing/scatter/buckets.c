// buckets: adds in many long lists of rows of one word.
//
// A group takes TOGETHER lists, and sorts their rows into buckets of 2^SHIFT adjacent indices: it counts the rows of each bucket,
// then writes an entry for each row, in any order. A thread per row of y adds the rows of its bucket that have this index, in the
// order of their numbers. If there is no room for all buckets, the group makes several passes. A pass covers BUCKETS - 1 buckets,
// or as many as have at most ENTRIES entries. A bucket of more than MOST_ENTRIES rows has no entries: its rows of y are computed
// from the list.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// TOGETHER, KEPT, AT_ONCE: as in scatter/long.h
// SHIFT: 0 .. 15, a bucket has 2^SHIFT indices
// BUCKETS: multiple of 256, buckets of a list
// ENTRIES: multiple of 512, entries of a list
// ADDING and the defines of scatter/sum.h
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"
#define HALF_COUNTS
#include "reduction/prefix.h"
#include "indexing/scatter/sum.h"

#define AHEAD 8
#define IS_GOOD(v) ((u64)(v) < (u64)extent && (v) != padding)
#include "indexing/scatter/long.h"

// An entry: the SHIFT lowest bits of the index, which distinguish the indices of a bucket, and below them the number of the row.
#define NUMBER_BITS (16 - SHIFT)
#define ENTRY(v, i) (((u32)(v) & ((1u << SHIFT) - 1)) << NUMBER_BITS | (u32)(i))
#define NUMBER(entry) ((idx)((entry) & ((1u << NUMBER_BITS) - 1)))
// No entry. It is greater than all entries.
#define NONE (~(u32)0)
// The largest number of entries of a bucket that is searched for each row of y.
#define MOST_ENTRIES 256
// Rows of the source that a thread reads at once.
#define NEXT 4
#define EACH_NEXT(a) _Pragma("unroll") for (int a = 0; a < NEXT; a++)
#define ADD_ONE(b) HALF(add_local(&starts[(b) / 2], 1u << (b) % 2 * 16), b)
// The first entry of a bucket; once entries are written, the end of its entries.
#define START(b) ((int)HALF(starts[(b) / 2], b))
#define IS_LONG(b) (longs[(b) / 32] >> ((b) & 31) & 1)
// The bucket of an index. It is below 0 or above all others if it is not in this pass.
#define BUCKET(v) ((int)((v) >> SHIFT) - low)

// The NEXT smallest entries of a bucket from `least` up to `end`, in ascending order.
LOCAL_FUNCTION void find_next(LOCAL const u16 *entries, int n, u32 least, u32 end, u32 *next) {
    EACH_NEXT(a) next[a] = NONE;
    for (int e = 0; e < n; e++) {
        u32 entry = entries[e];
        if (entry < least || entry >= end) continue;
        EACH_NEXT(a) {
            u32 larger = entry > next[a] ? entry : next[a];
            next[a] = entry > next[a] ? next[a] : entry;
            entry = larger;
        }
    }
}

KERNEL(buckets)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, ARGUMENT(Ints) p,
                i64 along, i64 extent, i64 total, i64 count, i64 apart, i64 index_step, i64 source_step, i64 padding,
                GLOBAL i64 *status) {
    SHARED_GIVEN(u32, all_starts, TOGETHER * (BUCKETS / 2 + BUCKETS / 32 + ENTRIES / 2 + 1));
    LOCAL u32 *all_longs = all_starts + TOGETHER * (BUCKETS / 2), *ends = all_longs + TOGETHER * (BUCKETS / 32);
    // Before it holds entries, this memory holds the threads' sums of counts.
    LOCAL u32 *sums = ends + TOGETHER;
    int own = LANE % TOGETHER, member = LANE / TOGETHER;
    LOCAL u32 *starts = all_starts + own * (BUCKETS / 2), *longs = all_longs + own * (BUCKETS / 32);
    LOCAL u16 *entries = (LOCAL u16 *)(ends + TOGETHER) + own * ENTRIES;
    i64 list = GROUP * TOGETHER + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0;
    GLOBAL const SI *at = index + WALK(ROW_SPACE, INDEX_STRIDES, ROWS, row);
    idx to_list = WALK(ROW_SPACE, Y_STRIDES, ROWS, row), from = WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, row), step = (idx)source_step;
    int buckets = (((int)extent - 1) >> SHIFT) + 1, low = 0;
    READ_KEPT
    while (low < buckets) {
        for (int k = LANE; k < TOGETHER * (BUCKETS / 2 + BUCKETS / 32); k += THREADS) all_starts[k] = 0;
        int size = buckets - low < BUCKETS - 1 ? buckets - low : BUCKETS - 1;
        if (member == 0) ends[own] = (u32)size;
        BARRIER();
#ifdef KEPT
        EACH_TURN(t) EACH_AHEAD(a) {
            int b = (int)(HALF(kept[(t + a) / 2], t + a) >> SHIFT);
            if (b < size) ADD_ONE(b);
        }
#else
        EACH_TURN(t) {
            READ_INDICES(v, t)
            EACH_AHEAD(a) {
                int i = ROW_OF(t, a), b = BUCKET(v[a]);
                if (IS_GOOD(v[a]) && (u32)b < (u32)size) ADD_ONE(b);
                if (i < n && (u64)v[a] >= (u64)extent && low == 0) note(status, row + i * (idx)apart, v[a]);
            }
        }
#endif
        BARRIER();
        for (int b = member; b < size; b += MEMBERS)
            if (START(b) > MOST_ENTRIES) or_local(&longs[b / 32], 1u << (b & 31));
        BARRIER();
        for (int k = member; k < BUCKETS / 2; k += MEMBERS) {
            u32 are_long = longs[k / 16] >> k % 16 * 2;
            if (are_long & 3) starts[k] &= (are_long & 1 ? 0 : 0xffff) | (are_long & 2 ? 0 : 0xffff0000);
        }
        begin(all_starts, TOGETHER * (BUCKETS / 2), sums);
#if TOGETHER > 1
        // The counts before the first bucket belong to other lists.
        u32 base = starts[0] & 0xffff;
        BARRIER();
        for (int k = member; k < BUCKETS / 2; k += MEMBERS)
            starts[k] = ((starts[k] - base) & 0xffff) | ((starts[k] - (base << 16)) & 0xffff0000);
        BARRIER();
#endif
        // No row is in the last bucket.
        for (int b = member; b < size; b += MEMBERS)
            if (START(b) <= ENTRIES && START(b + 1) > ENTRIES) ends[own] = (u32)b;
        BARRIER();
        for (int other = 0; other < TOGETHER; other++) size = (int)ends[other] < size ? (int)ends[other] : size;
#ifdef KEPT
        EACH_TURN(t) {
            TAKE_KEPT(pairs, t)
            EACH_AHEAD(a) {
                u32 v = HALF(pairs[a / 2], a);
                int b = (int)(v >> SHIFT);
                if (b < size && !IS_LONG(b)) entries[ADD_ONE(b)] = (u16)ENTRY(v, ROW_OF(t, a));
                KEEP(t + a, b < size || v == NOWHERE ? NOWHERE : v - ((u32)size << SHIFT));
            }
        }
#else
        EACH_TURN(t) {
            READ_INDICES(v, t)
            EACH_AHEAD(a) {
                int b = BUCKET(v[a]);
                if (!IS_GOOD(v[a]) || (u32)b >= (u32)size || IS_LONG(b)) continue;
                entries[ADD_ONE(b)] = (u16)ENTRY(v[a], ROW_OF(t, a));
            }
        }
#endif
        BARRIER();
        i64 stop = (i64)(low + size) << SHIFT;
        if (stop > extent || n == 0) stop = n > 0 ? extent : 0;
        for (idx v = ((idx)low << SHIFT) + member; v < (idx)stop; v += MEMBERS) {
            idx to = to_list + v * (idx)along;
            int b = BUCKET(v), begins = b > 0 ? START(b - 1) : 0, of_bucket = START(b) - begins;
            u32 least = ENTRY(v, 0), end = least + (1u << NUMBER_BITS);
            int length = 0;
            if (IS_LONG(b)) {
                // Added in blocks, which keeps the errors of long sums small.
                Sum sum = BEFORE(y, to), block = zero();
                for (int j = 0; j < n; j += AHEAD) {
                    i64 value[AHEAD];
                    EACH_AHEAD(a) value[a] = j + a < n ? at[(j + a) * (idx)index_step] : -1;
                    EACH_AHEAD(a) if (value[a] == v && value[a] != padding) {
                        block = joined(block, load(source, from + (j + a) * step, j + a));
                        if (++length % 64 > 0) continue;
                        sum = joined(sum, block);
                        block = zero();
                    }
                }
                if (length > 0) PUT(to, v, 0, joined(sum, block), length);
                continue;
            }
            u32 next[NEXT];
            find_next(entries + begins, of_bucket, least, end, next);
            if (next[0] == NONE) continue;
            Sum sum = BEFORE(y, to);
            while (next[0] != NONE) {
                Word read[NEXT];
                EACH_NEXT(a) if (next[a] != NONE)
                    SET_WORD(read[a], ((GLOBAL const WORD *)source)[from + NUMBER(next[a]) * step]);
                EACH_NEXT(a) if (next[a] != NONE) {
                    sum = joined(sum, sum_of(read[a], NUMBER(next[a])));
                    length++;
                }
                if (next[NEXT - 1] == NONE) break;
                find_next(entries + begins, of_bucket, next[NEXT - 1] + 1, end, next);
            }
            PUT(to, v, 0, sum, length);
        }
        low += size;
        BARRIER();
    }
}

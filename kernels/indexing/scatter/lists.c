// lists: for an index whose lists fit into local memory.
//
// A group takes `together` lists, a power of 2. Each has `bits` bits, a power of 2, one for all indices that are equal modulo
// `bits`. A row that shares its bit with no other row is moved at once. The other rows are sorted into BUCKETS buckets, in any
// order. Rows with the same position are in the same bucket: the first of them adds all, in order; in an assignment, the last
// writes. If there are more than ENTRIES such rows, `at_once` lists are processed at a time. If a row has several words, the groups
// with the same GROUP share the words.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// ENTRIES: power of 2, entries of a group's buckets
// BUCKETS: power of 2, buckets of a group
// NUMBER_BITS: 1 .. 31, bits of a row's number in an entry; the bits above have its index
// ONE: flag, a row has one word
// KEPT: 1.., with ONE, rows that a thread keeps in registers, if these hold all rows; otherwise not defined
// AT_ONCE: with KEPT, groups that a multiprocessor should run together
// ADDING: flag, rows with the same position are added, see sum.h; otherwise the last one is written
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"
#include "reduction/prefix.h"
#include "indexing/scatter/sum.h"

// An entry of a bucket: the index, and below it the number of the row.
#define ENTRY(v, i) ((u32)(v) << NUMBER_BITS | (u32)(i))
#define NUMBER(entry) ((idx)((entry) & ((1u << NUMBER_BITS) - 1)))
#define MEET(a, b) ((((a) ^ (b)) >> NUMBER_BITS) == 0)
#define BUCKET(v) (own * buckets + (int)mul_hi_u32((u32)(v) * 2654435761u, buckets))
// The size of a bucket up to which all entries are searched for each row that is added, and the indices that are read at once if
// the list is searched instead.
#define FEW_ENTRIES 32
#define SCANNED 8

// Indices, or words, that a thread reads at once.
#ifdef ONE
#define ROW(k) (k)
#define AHEAD (sizeof(S) > 4 ? 4 : 8)
#else
#define ROW(k) QUOTIENT(k, width, by_width)
#define AHEAD 4
#endif
#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
#define EACH_SCANNED(a) _Pragma("unroll") for (int a = 0; a < SCANNED; a++)
#define EACH_KEPT(a) _Pragma("unroll") for (int a = 0; a < KEPT; a++)
#define TO(w) WALK(WORD_SPACE, Y_WORD_STRIDES, INNER, w)
#define FROM(w) WALK(WORD_SPACE, SOURCE_WORD_STRIDES, INNER, w)
#define IS_GOOD(v) ((u64)(v) < (u64)extent && (v) != padding)
// The indices of AHEAD rows; -1 for a bad index, or beyond the last row. `a` counts them.
#define READ_INDICES(v, row, is_there) \
    idx v[AHEAD]; \
    EACH_AHEAD(a) { \
        i64 value = (is_there) ? at[(row) * (idx)index_step] : -1; \
        v[a] = IS_GOOD(value) ? (idx)value : -1; \
    }
// PLACE, BIT: the word and the bit of an index. IS_AGAIN: several rows have this bit.
#define PLACE(v) (((int)(v) & ((int)bits - 1)) / 32 * spread)
#define BIT(v) (1u << ((v) & 31))
#define IS_AGAIN(v) (again[PLACE(v)] & BIT(v))
// The bit of a row, and whether it is set: the row may share its position with others.
#define FLAG(i) ((int)((i) * (idx)together) + own)
#define MARK(i, v) \
    or_local(meeting + FLAG(i) / 32, BIT(FLAG(i))); \
    add_local(&ends[BUCKET(v)], 1)
#define MEETS(i) (meeting[FLAG(i) / 32] & BIT(FLAG(i)))

KERNEL(lists)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, ARGUMENT(Ints) p,
              i64 width, i64 by_width, i64 along, i64 extent, i64 total, i64 together, i64 at_once, i64 bits, i64 count,
              i64 apart, i64 index_step, i64 source_step, i64 padding, GLOBAL i64 *status) {
    SHARED_GIVEN(u32, entries, ENTRIES + BUCKETS + ENTRIES / 16 + THREADS);
    LOCAL u32 *ends = entries + ENTRIES, *meeting = ends + BUCKETS, *sums = meeting + ENTRIES / 16;
    int team = THREADS / (int)together, buckets = BUCKETS / (int)together, of_list = (int)bits / 32;
    // Adjacent threads take adjacent indices, and different banks of local memory.
    int own = apart > 1 ? LANE % (int)together : LANE / team, member = apart > 1 ? LANE / (int)together : LANE % team;
    int spread = apart > 1 ? (int)together : 1;
    // Before it holds entries, this memory holds bits: of indices that occur, and of indices that occur again.
    LOCAL u32 *once = entries + (apart > 1 ? own : own * of_list), *again = once + of_list * (int)together;
    i64 list = GROUP * together + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0, words = n * (idx)width;
    GLOBAL const SI *at = index + WALK(ROW_SPACE, INDEX_STRIDES, ROWS, row);
    idx to_list = WALK(ROW_SPACE, Y_STRIDES, ROWS, row), from_list = WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, row);
#ifdef KEPT
    // These reads are in flight while local memory is cleared.
    SI value[KEPT];
    EACH_KEPT(a) if (member + a * team < n) value[a] = at[(member + a * team) * (idx)index_step];
#endif
    for (int i = LANE; i < 2 * of_list * (int)together; i += THREADS) entries[i] = 0;
    for (int i = LANE; i < BUCKETS; i += THREADS) ends[i] = 0;
#ifdef KEPT
    BARRIER();
    idx v[KEPT];
    EACH_KEPT(a) {
        int i = member + a * team;
        v[a] = i < n && IS_GOOD(value[a]) ? (idx)value[a] : -1;
        if (i < n && (u64)value[a] >= (u64)extent) note(status, row + i * (idx)apart, value[a]);
    }
    // All reads come before the first write.
    Word read[KEPT];
    EACH_KEPT(a) if (v[a] >= 0)
        SET_WORD(read[a], ((GLOBAL const WORD *)source)[from_list + (member + a * team) * (idx)source_step]);
#if defined(ADDING) && !defined(FRESH)
    Word had[KEPT];
    EACH_KEPT(a) if (v[a] >= 0) SET_WORD(had[a], ((GLOBAL const WORD *)y)[to_list + v[a] * (idx)along]);
#endif
    EACH_KEPT(a) if (v[a] >= 0 && or_local(once + PLACE(v[a]), BIT(v[a])) & BIT(v[a]))
        or_local(again + PLACE(v[a]), BIT(v[a]));
    BARRIER();
    u32 meets = 0;
    EACH_KEPT(a) if (v[a] >= 0) {
        idx to = to_list + v[a] * (idx)along;
        if (IS_AGAIN(v[a])) {
            meets |= 1u << a;
            add_local(&ends[BUCKET(v[a])], 1);
            continue;
        }
#ifdef FRESH
        PUT(to, v[a], 0, sum_of(read[a], member + a * team), 1);
#elif defined(ADDING)
        store(y, to, joined(sum_of(had[a], 0), sum_of(read[a], 0)));
#else
        ((GLOBAL WORD *)y)[to] = read[a].all;
#endif
    }
    idx share = member, shares = team;
#else
    for (int i = LANE; i < ENTRIES / 16; i += THREADS) meeting[i] = 0;
    BARRIER();
    for (int i = member; i < n; i += AHEAD * team) {
        SI v[AHEAD];
        EACH_AHEAD(a) if (i + a * team < n) v[a] = at[(i + a * team) * (idx)index_step];
        EACH_AHEAD(a) if (i + a * team < n) {
            if (IS_GOOD(v[a])) {
                if (or_local(once + PLACE(v[a]), BIT(v[a])) & BIT(v[a])) or_local(again + PLACE(v[a]), BIT(v[a]));
            } else if ((u64)v[a] >= (u64)extent && GROUP_Y == 0)
                note(status, row + (i + a * team) * (idx)apart, v[a]);
        }
    }
    BARRIER();
#ifndef ONE
    for (int i = member; i < n; i += AHEAD * team) {
        READ_INDICES(v, i + a * team, i + a * team < n)
        EACH_AHEAD(a) if (v[a] >= 0 && IS_AGAIN(v[a])) {
            MARK(i + a * team, v[a]);
        }
    }
    BARRIER();
#endif
    idx share = member + (idx)GROUP_Y * team, shares = team * (idx)GROUPS_Y;
    for (idx k = share; k < words; k += AHEAD * shares) {
        READ_INDICES(v, ROW(k + a * shares), k + a * shares < words)
        idx to[AHEAD];
        Word read[AHEAD], had[AHEAD];
        EACH_AHEAD(a) {
            idx i = ROW(k + a * shares), w = k + a * shares - i * (idx)width;
            to[a] = -1;
            if (v[a] < 0) continue;
#ifdef ONE
            if (IS_AGAIN(v[a])) {
                MARK(i, v[a]);
                continue;
            }
#else
            if (MEETS(i)) continue;
#endif
            to[a] = to_list + v[a] * (idx)along + TO(w);
            SET_WORD(read[a], ((GLOBAL const WORD *)source)[from_list + i * (idx)source_step + FROM(w)]);
#if defined(ADDING) && !defined(FRESH)
            SET_WORD(had[a], ((GLOBAL const WORD *)y)[to[a]]);
#endif
        }
        EACH_AHEAD(a) if (to[a] >= 0) {
#ifdef FRESH
            idx i = ROW(k + a * shares);
            PUT(to[a], v[a], k + a * shares - i * (idx)width, sum_of(read[a], i), 1);
#elif defined(ADDING)
            store(y, to[a], joined(sum_of(had[a], 0), sum_of(read[a], 0)));
#else
            ((GLOBAL WORD *)y)[to[a]] = read[a].all;
#endif
        }
    }
#endif
    int step = begin(ends, BUCKETS, sums) <= ENTRIES ? (int)together : (int)at_once;
    for (int turn = 0; turn < (int)together; turn += step) {
        int is_turn = own >= turn && own < turn + step, base = turn > 0 ? (int)ends[turn * buckets - 1] : 0;
#ifdef KEPT
        EACH_KEPT(a) if (is_turn && (meets >> a & 1))
            entries[(int)add_local(&ends[BUCKET(v[a])], 1) - base] = ENTRY(v[a], member + a * team);
#else
        for (int i = member; i < n && is_turn; i += AHEAD * team) {
            READ_INDICES(v, i + a * team, i + a * team < n && MEETS(i + a * team))
            EACH_AHEAD(a) if (v[a] >= 0)
                entries[(int)add_local(&ends[BUCKET(v[a])], 1) - base] = ENTRY(v[a], i + a * team);
        }
#endif
        BARRIER();
#ifdef ONE
        int start = own > 0 ? (int)ends[own * buckets - 1] : 0;
        idx last = is_turn ? (int)ends[(own + 1) * buckets - 1] - start : 0;
#else
        idx last = words;
#endif
        for (idx k = share; k < last; k += shares) {
#ifdef ONE
            u32 entry = entries[start - base + k];
            idx i = NUMBER(entry), value = (idx)(entry >> NUMBER_BITS), w = 0;
#else
            idx i = ROW(k), w = k - i * (idx)width;
            if (!MEETS(i)) continue;
            idx value = (idx)at[i * (idx)index_step];
            u32 entry = ENTRY(value, i);
#endif
            int b = BUCKET(value), from_entry = (b > 0 ? (int)ends[b - 1] : 0) - base, end = (int)ends[b] - base;
            int is_mine = 1, others = -1;
            for (int e = from_entry; e < end && is_mine; e++) {
                u32 other = entries[e];
                int meets = MEET(other, entry);
                others += meets;
#ifdef ADDING
                is_mine = !meets || other >= entry;
#else
                is_mine = !meets || other <= entry;
#endif
            }
            if (!is_mine) continue;
            idx to = to_list + value * (idx)along + TO(w), from = from_list + FROM(w);
#ifdef ADDING
            int length = others + 1;
            Sum sum = joined(BEFORE(y, to), load(source, from + i * (idx)source_step, i));
            if (end - from_entry <= FEW_ENTRIES) {
                for (; others > 0; others--) {
                    u32 next = ~(u32)0;
                    for (int e = from_entry; e < end; e++) {
                        u32 other = entries[e];
                        if (MEET(other, entry) && other > entry && other < next) next = other;
                    }
                    entry = next;
                    sum = joined(sum, load(source, from + NUMBER(entry) * (idx)source_step, NUMBER(entry)));
                }
            } else {
                // Added in blocks, which keeps the errors of long sums small.
                for (idx j = i + 1; others > 0;) {
                    Sum block = zero();
                    for (int stop = others > 64 ? others - 64 : 0; others > stop; j += SCANNED) {
                        i64 next[SCANNED];
                        EACH_SCANNED(a) next[a] = j + a < n ? at[(j + a) * (idx)index_step] : -1;
                        EACH_SCANNED(a) if (next[a] == value) {
                            block = joined(block, load(source, from + (j + a) * (idx)source_step, j + a));
                            others--;
                        }
                    }
                    sum = joined(sum, block);
                }
            }
            PUT(to, value, w, sum, length);
#else
            ((GLOBAL WORD *)y)[to] = ((GLOBAL const WORD *)source)[from + i * (idx)source_step];
#endif
        }
        // The next lists' entries replace these.
        if (turn + step < (int)together) BARRIER();
    }
}

// exact: sums of f16 as integers of 64 bits, for short tables. An integer can hold the sum of 2^22 numbers, so the order does not
// matter. The sum is rounded once.
//
// A group sums TOGETHER adjacent lists in BINS integers of local memory. An integer has two halves of 32 bits, and two bits for
// infinities. Integers of adjacent lists are adjacent. A row of y that gets no terms, or only 0, is not written.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// TOGETHER: power of 2, lists of a group
// BINS: multiple of 1024, integers of a group
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

// A finite f16 in units of the smallest one, 2^-24.
FUNCTION i64 units_of(S h) {
    int exponent = h >> 10 & 31;
    i64 size = exponent == 0 ? h & 0x3ff : (i64)((h & 0x3ff) | 0x400) << (exponent - 1);
    return h & 0x8000 ? -size : size;
}

// The nearest f16.
FUNCTION S nearest(i64 units) { return f32_to_f16(integer_to_odd(units) * 5.96046448e-08f); }

// The infinities of a value, as two bits. NaN sets both.
#define IS_SPECIAL(h) (((h) & 0x7c00) == 0x7c00)
#define HELD(h) ((h) & 0x3ff ? 3u : (h) & 0x8000 ? 2u : 1u)
#define SPECIAL(held) (S)((held) == 3 ? 0x7e00 : (held) == 2 ? 0xfc00 : 0x7c00)
// Indices and values that a thread reads at once.
#define AHEAD 4
#define EACH_AHEAD(a) _Pragma("unroll") for (int a = 0; a < AHEAD; a++)
// Threads of a list.
#define MEMBERS (THREADS / TOGETHER)

KERNEL(exact)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 along, i64 extent, i64 total,
              i64 count, i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    SHARED_GIVEN(u32, sums, BINS * 2 + BINS / 16);
    LOCAL u32 *low = sums, *high = sums + BINS, *special = sums + 2 * BINS;
    int own = LANE % TOGETHER, member = LANE / TOGETHER;
    i64 list = GROUP * TOGETHER + own;
    int n = list < total ? (int)count : 0;
    idx row = n > 0 ? FIRST_ROW((idx)list, (idx)count, (idx)apart) : 0;
    GLOBAL const SI *at = index + WALK(ROW_SPACE, INDEX_STRIDES, ROWS, row);
    GLOBAL const S *from = source + WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, row);
    y += WALK(ROW_SPACE, Y_STRIDES, ROWS, row);
    for (int i = LANE; i < BINS * 2 + BINS / 16; i += THREADS) sums[i] = 0;
    BARRIER();
    for (int i = member; i < n; i += AHEAD * MEMBERS) {
        i64 v[AHEAD];
        S read[AHEAD];
        EACH_AHEAD(a) {
            int k = i + a * MEMBERS;
            v[a] = k < n ? at[k * (idx)index_step] : -1;
            read[a] = k < n ? from[k * (idx)source_step] : 0;
        }
        EACH_AHEAD(a) {
            int k = i + a * MEMBERS;
            if (k >= n) continue;
            if ((u64)v[a] >= (u64)extent) {
                note(status, row + k * (idx)apart, v[a]);
                continue;
            }
            int bin = (int)v[a] * TOGETHER + own;
            if (IS_SPECIAL(read[a])) {
                or_local(&special[bin / 16], HELD(read[a]) << bin % 16 * 2);
            } else {
                i64 units = units_of(read[a]);
                u32 below = (u32)units, sum = add_local(&low[bin], below) + below;
                u32 above = (u32)(units >> 32) + (sum < below);
                if (above != 0) add_local(&high[bin], above);
            }
        }
    }
    BARRIER();
    for (int v = member; v < (int)extent && n > 0; v += MEMBERS) {
        int bin = v * TOGETHER + own;
        i64 units = (i64)((u64)high[bin] << 32 | low[bin]);
        u32 held = special[bin / 16] >> bin % 16 * 2 & 3;
        if (units == 0 && held == 0) continue;
        S before = y[v * (idx)along];
        if (IS_SPECIAL(before)) held |= HELD(before);
        y[v * (idx)along] = held ? SPECIAL(held) : nearest(units + units_of(before));
    }
}

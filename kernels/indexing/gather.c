// gather: y[row, u] = x[row with index[row] along the indexed dimension, u].
//
// A thread writes a word of y: NUMBERS units, each with an index of its own. A unit is `size` elements; `width` elements share an
// index. Units of a word are `step` units apart in x.
//
// I, NUMBERS, INDEX_WORD, INDEX_WORDS: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS: 1.., dimensions of the words of y
// SPACE, INDEX_STRIDES, X_STRIDES: for WALK, these dimensions, and strides of the index and of x
// Y_STRIDES: with TILED, strides of y
// UNIT: u8 .. u32x4, the type of a unit
// WORD: u8 .. u32x4, the type of a word of y
// TILED: flag, words of y are visited in tiles
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

typedef union {
    WORD all;
    UNIT each[NUMBERS];
} Units;

#define EACH_UNIT(j) _Pragma("unroll") for (int j = 0; j < NUMBERS; j++)

KERNEL(gather)(GLOBAL const UNIT *x, GLOBAL const SI *index, GLOBAL WORD *y, ARGUMENT(Ints) p, i64 n, i64 size, i64 width,
               i64 along, i64 extent, i64 step, UNIT bad, GLOBAL i64 *status) {
    for (idx w = (idx)(GROUP * THREADS) + LANE; w < (idx)n; w += (idx)(GROUPS * THREADS)) {
        Indices v;
        Units read;
        idx at = WALK(SPACE, INDEX_STRIDES, ROWS, w), from = WALK(SPACE, X_STRIDES, ROWS, w), to = w;
#ifdef TILED
        to = WALK(SPACE, Y_STRIDES, ROWS, w);
#endif
        _Pragma("unroll") for (int k = 0; k < INDEX_WORDS; k++) v.all[k] = ((GLOBAL const INDEX_WORD *)(index + at))[k];
        EACH_UNIT(j) {
            read.each[j] = bad;
            if ((u64)v.each[j] < (u64)extent) read.each[j] = x[from + j * (idx)step + (idx)v.each[j] * (idx)along];
        }
        y[to] = read.all;
        // All reads come before the first write, so that no read waits for another.
        EACH_UNIT(j) if ((u64)v.each[j] >= (u64)extent)
            note(status, ((i64)to * NUMBERS + j) * size / width, v.each[j]);
    }
}

// The gradient of rows that were reduced by index, such as edges of a graph to nodes.
//
// THREADS: 1 .. 1024, threads of a group
// I, T, VECTOR, WORD: as in index.h
// ACC: f32 or f64, dtype of the arithmetic
// EVEN: flag, the reduction was a maximum, and equal elements share its gradient
// FIRST: flag, the reduction was a maximum, and the first of equal elements gets its gradient; without EVEN and FIRST, the
//   reduction was a mean
// COUNT_WORD, COUNT_WORDS: type and number of words in which VECTOR counts (i32) are read
// FIRST_WORD, FIRST_WORDS: type and number of words in which VECTOR rows (i64) are read
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

// shares: dx [E, F] of x [E, F], whose rows were reduced to y [N, F] by index [E]. dx[e] is a share of dy[index[e]]:
//   mean    dy / counts[index[e]], counts [N]
//   EVEN    dy / counts where x equals y, counts [N, F]
//   FIRST   dy where `first` [N, F] is e
// A row has `width` words.
KERNEL(shares)(GLOBAL const S *dy, GLOBAL const SI *index, GLOBAL const i32 *counts, GLOBAL const S *x, GLOBAL const S *y,
               GLOBAL const i64 *first, GLOBAL S *dx, i64 n, i64 width, i64 by_width, i64 extent, S bad, GLOBAL i64 *status) {
    for (idx e = (idx)(GROUP * THREADS) + LANE; e < (idx)n; e += (idx)(GROUPS * THREADS)) {
        idx row = QUOTIENT(e, width, by_width);
        i64 v = index[row];
        Word g;
        if ((u64)v >= (u64)extent) {
            note(status, row, v);
            EACH_PART(j) g.each[j] = bad;
            ((GLOBAL WORD *)dx)[e] = g.all;
            continue;
        }
        idx at = (idx)v * (idx)width + (e - row * (idx)width);
        g.all = ((GLOBAL const WORD *)dy)[at];
#ifdef FIRST
        union {
            FIRST_WORD all[FIRST_WORDS];
            i64 each[VECTOR];
        } rows;
        for (int k = 0; k < FIRST_WORDS; k++) rows.all[k] = ((GLOBAL const FIRST_WORD *)first)[(i64)at * FIRST_WORDS + k];
        EACH_PART(j) if (rows.each[j] != row) g.each[j] = 0;
#elif defined(EVEN)
        union {
            COUNT_WORD all[COUNT_WORDS];
            i32 each[VECTOR];
        } ties;
        Word own, best;
        own.all = ((GLOBAL const WORD *)x)[e];
        best.all = ((GLOBAL const WORD *)y)[at];
        for (int k = 0; k < COUNT_WORDS; k++) ties.all[k] = ((GLOBAL const COUNT_WORD *)counts)[(i64)at * COUNT_WORDS + k];
        // A product: a NaN maximum equals no row, and makes all gradients NaN.
        EACH_PART(j) {
            A part = (A)LOAD(T, g.each, j) / (A)ties.each[j];
            STORE(T, g.each, j, part * (A)(LOAD(T, own.each, j) == LOAD(T, best.each, j)));
        }
#else
        A count = (A)counts[v];
        EACH_PART(j) STORE(T, g.each, j, (A)LOAD(T, g.each, j) / count);
#endif
        ((GLOBAL WORD *)dx)[e] = g.all;
    }
}

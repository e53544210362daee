// assign: y gets the last row of each segment of rows that are sorted by key.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// K, LIST: as in scatter/ordered.h
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"
#include "indexing/scatter/ordered.h"

KERNEL(assign)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 rows,
               i64 width, i64 by_width, i64 along, i64 extent, i64 bad) {
    for (i64 e = GROUP * THREADS + LANE; e < rows * width; e += GROUPS * THREADS) {
        idx k = QUOTIENT((idx)e, width, by_width), w = (idx)e - k * (idx)width;
        K key = keys[k];
        if (IS_BAD(key) || (k + 1 < (idx)rows && keys[k + 1] == key)) continue;
        ((GLOBAL WORD *)y)[TO_ROW(key) + TO(w)] = ((GLOBAL const WORD *)source)[FROM_ROW(k) + FROM(w)];
    }
}

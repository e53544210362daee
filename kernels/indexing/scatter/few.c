// few: for an index that is short along the indexed dimension. A thread looks at all rows of a list.
//
// Of the rows with the same position, the first adds all; in an assignment, the last writes. The strides along the indexed
// dimension are `index_step` and `source_step`. With `count` 1, a row looks at no other.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// ADDING: flag, rows with the same position are added, see sum.h; otherwise the last one is written
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"
#include "indexing/scatter/sum.h"

KERNEL(few)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 n, i64 width, i64 by_width,
            i64 along, i64 extent, i64 count, i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = QUOTIENT((idx)e, width, by_width), w = (idx)e - row * (idx)width;
        int own = (int)(row / (idx)apart % (idx)count), left = (int)count - own;
        GLOBAL const SI *at = index + WALK(ROW_SPACE, INDEX_STRIDES, ROWS, row);
        i64 v = *at;
        if ((u64)v >= (u64)extent) {
            note(status, row, v);
            continue;
        }
        int is_mine = 1;
#ifdef ADDING
        for (int i = 1; i <= own; i++) is_mine &= at[-i * (idx)index_step] != v;
#else
        for (int i = 1; i < left; i++) is_mine &= at[i * (idx)index_step] != v;
#endif
        if (!is_mine) continue;
        idx to = WALK(ROW_SPACE, Y_STRIDES, ROWS, row) + (idx)v * (idx)along + WALK(WORD_SPACE, Y_WORD_STRIDES, INNER, w);
        idx from = WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, row) + WALK(WORD_SPACE, SOURCE_WORD_STRIDES, INNER, w);
#ifdef ADDING
        Sum sum = joined(load(y, to, 0), load(source, from, 0));
        for (int i = 1; i < left; i++)
            if (at[i * (idx)index_step] == v) sum = joined(sum, load(source, from + i * (idx)source_step, 0));
        store(y, to, sum);
#else
        ((GLOBAL WORD *)y)[to] = ((GLOBAL const WORD *)source)[from];
#endif
    }
}

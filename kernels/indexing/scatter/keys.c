// keys: the position of each row of the index as a key, list * extent + index, for sorting.
//
// Rows with a bad index get the key `bad`, which is above all others. Rows whose index is `padding` get it too; this is not an
// error.
//
// I: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS: 1.., dimensions of the index's rows; ROW_SPACE and INDEX_STRIDES, for WALK
// K: u32 or u64, type of a key
// FRESH: flag, there is one list, and `used` [extent] gets 1 for each key that occurs
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

KERNEL(keys)(GLOBAL const SI *index, GLOBAL K *keys, GLOBAL u8 *used, ARGUMENT(Ints) p, i64 rows, i64 count, i64 apart, i64 extent,
             i64 bad, i64 padding, GLOBAL i64 *status) {
    for (i64 row = GROUP * THREADS + LANE; row < rows; row += GROUPS * THREADS) {
        i64 v = index[WALK(ROW_SPACE, INDEX_STRIDES, ROWS, (idx)row)];
        int is_bad = (u64)v >= (u64)extent;
        if (is_bad) note(status, row, v);
        is_bad |= v == padding;
        keys[row] = (K)(is_bad ? bad : (i64)LIST_OF((idx)row, (idx)count, (idx)apart) * extent + v);
#ifdef FRESH
        if (!is_bad) write_alike(used + v, 1);
#endif
    }
}

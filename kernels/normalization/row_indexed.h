// Rows of a table, which an index selects. A bad index is reported, and its row is NaN. rows.h lists the names.
//
// INDEX: i32 or i64, dtype of an index that selects rows of a table of `table_rows`; needs WHOLE

typedef STORAGE(INDEX) SI;
#define INDEX_ARGUMENTS GLOBAL const SI *index, i64 table_rows,
#define SOURCE(x, at) table_for(x, index, table_rows, (at).row, extent)
#define CHECKED(rstd, at) checked(rstd, index, table_rows, (at).row, status)

// x, shifted so that a row of the table is at the position of the row of the result. A bad index selects the first row.
FUNCTION GLOBAL const STORAGE(T) *table_for(GLOBAL const STORAGE(T) *x, GLOBAL const SI *index, i64 table_rows, i64 row,
                                            i64 extent) {
    i64 named = index[row];
    return x + (((u64)named < (u64)table_rows ? named : 0) - row) * extent;
}

FUNCTION A checked(A rstd, GLOBAL const SI *index, i64 table_rows, i64 row, GLOBAL i64 *status) {
    i64 named = index[row];
    if ((u64)named >= (u64)table_rows) {
        rstd = (A)as_f32(0x7fc00000);
        if (MEMBER == 0) note(status, row, named);
    }
    return rstd;
}

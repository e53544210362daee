// turn: matrices [count, rows, columns], each turned: y[n, column, row] = x[n, row, column]. Elements along a row of x, and along a
// column of y, are adjacent. y may have more rows, which are 0.
//
// A group takes a tile of ROWS x COLUMNS elements through local memory.
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of x and y
// ROWS, COLUMNS: power of 2, extents of a tile
// INTS: 9, length of `p`: rows, columns, rows of y; tiles along rows and columns; strides of x (matrix, row) and of y (matrix, column)
// WIDE: flag, positions have 64 bits

typedef STORAGE(T) S;
// A row of local memory has an odd number of words, so that a column is in different banks.
#define PITCH (COLUMNS + 2)

KERNEL(turn)(GLOBAL const S *x, GLOBAL S *y, Ints p) {
    SHARED(S, tile, ROWS * PITCH);
    idx tiles_r = (idx)p.v[3], tiles_c = (idx)p.v[4], group = (idx)GROUP, n = group / (tiles_r * tiles_c);
    idx within = group - n * (tiles_r * tiles_c), r0 = within % tiles_r * ROWS, c0 = within / tiles_r * COLUMNS;
    int rows = (int)(p.v[0] - r0 < ROWS ? p.v[0] - r0 : ROWS), columns = (int)(p.v[1] - c0 < COLUMNS ? p.v[1] - c0 : COLUMNS);
    int written = (int)(p.v[2] - r0 < ROWS ? p.v[2] - r0 : ROWS);
    GLOBAL const S *from = x + (n * p.v[5] + r0 * p.v[6] + c0);
    GLOBAL S *to = y + (n * p.v[7] + c0 * p.v[8] + r0);
    idx x_row = (idx)p.v[6], y_column = (idx)p.v[8];
#pragma unroll 8
    for (int e = LANE; e < ROWS * COLUMNS; e += THREADS) {
        int r = e / COLUMNS, c = e % COLUMNS;
        tile[r * PITCH + c] = r < rows && c < columns ? from[r * x_row + c] : (S)0;
    }
    BARRIER();
#pragma unroll 8
    for (int e = LANE; e < ROWS * COLUMNS; e += THREADS) {
        int r = e % ROWS, c = e / ROWS;
        if (r < written && c < columns) to[c * y_column + r] = tile[r * PITCH + c];
    }
}

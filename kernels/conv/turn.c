// turn: matrices [count, rows, columns], each turned: y[n, column, row] = x[n, row, column]. Elements along a row of x, and along a
// column of y, are adjacent. y may have more rows, which are 0.
//
// A group takes a tile of ROWS x COLUMNS elements through local memory.
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of x and y, or another of its size
// ROWS, COLUMNS: power of 2, extents of a tile
// N_ROWS, N_COLUMNS, N_WRITTEN: rows and columns of x, and rows of y
// TILES_R, TILES_C: tiles along rows and columns
// X_MATRIX, X_ROW, Y_MATRIX, Y_COLUMN: strides
// WIDE: flag, positions have 64 bits

typedef STORAGE(T) S;
// A row of local memory has an odd number of words, so that a column is in different banks.
#define PITCH (COLUMNS + 2)

KERNEL(turn)(GLOBAL const S *x, GLOBAL S *y, Ints p) {
    SHARED(S, tile, ROWS * PITCH);
    idx group = (idx)GROUP, n = group / (TILES_R * TILES_C), within = group - n * (TILES_R * TILES_C);
    idx r0 = within % TILES_R * ROWS, c0 = within / TILES_R * COLUMNS;
    int rows = (int)(N_ROWS - r0 < ROWS ? N_ROWS - r0 : ROWS), columns = (int)(N_COLUMNS - c0 < COLUMNS ? N_COLUMNS - c0 : COLUMNS);
    int written = (int)(N_WRITTEN - r0 < ROWS ? N_WRITTEN - r0 : ROWS);
    GLOBAL const S *from = x + (n * X_MATRIX + r0 * X_ROW + c0);
    GLOBAL S *to = y + (n * Y_MATRIX + c0 * Y_COLUMN + r0);
    idx x_row = (idx)X_ROW, y_column = (idx)Y_COLUMN;
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

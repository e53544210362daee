// pitch: rows of a matrix at another distance: y[row, column] = x[row, column]. Elements of y between and behind the rows become 0.
//
// A thread writes words of y, each of which may end one row and begin the next.
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of x and y, or another of its size
// VECTOR: power of 2, elements of a word of y
// WORD: u16 .. u32x4, type of a word
// N_WORDS: words of y
// N_ROWS, N_COLUMNS: extents of x
// X_PITCH, Y_PITCH: elements from a row to the next
// WIDE: flag, positions have 64 bits

typedef STORAGE(T) S;

typedef union {
    WORD word;
    S each[VECTOR];
} Vector;

KERNEL(pitch)(GLOBAL const S *x, GLOBAL WORD *y, Ints p) {
    for (i64 i = GROUP * THREADS + LANE; i < (i64)N_WORDS; i += GROUPS * THREADS) {
        idx row = (idx)i * VECTOR / Y_PITCH, column = (idx)i * VECTOR - row * Y_PITCH;
        Vector v;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            v.each[j] = row < N_ROWS && column < N_COLUMNS ? x[row * X_PITCH + column] : (S)0;
            if (++column == Y_PITCH) {
                column = 0;
                row++;
            }
        }
        y[i] = v.word;
    }
}

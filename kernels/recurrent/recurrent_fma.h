// Products of recurrent ops in f32. See recurrent.c.
//
// A team copies its part of the rows of shared memory to local memory, CHUNK elements of K at a time. The next chunk is on its way while one
// is multiplied.

typedef union {
    QUAD all;
    BITS each[4];
    u32 parts[sizeof(QUAD) / 4];
} Quad;

FUNCTION void numbers_of_quad(f32 *v, QUAD quad) {
    Quad q;
    q.all = quad;
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = CAT(NUMBER_OF_, T)(q.each[j]);
}

// The place of the weight of element k and a column.
#define PLACE(k, column) (((k) / 4 * COLUMNS + (column)) * 4 + (k) % 4)
#define WEIGHT(bits) (bits)

// A thread has every COLUMN_GROUPS-th column, and every ROW_GROUPS-th row.
#define COLUMN_GROUPS (COLUMNS / OWN_COLUMNS)
#define ROW_GROUPS (TEAM_THREADS / COLUMN_GROUPS)
#define OWN_ROWS (ROWS / ROW_GROUPS)
// The rows of a chunk in local memory; neighbouring rows begin in different banks.
#define STRIDE (CHUNK + 4)
#define TURNS (ROWS * CHUNK / 4 / TEAM_THREADS)
#define REGION (ROWS * STRIDE > ROWS * COLUMNS ? ROWS * STRIDE : ROWS * COLUMNS)
#define ROW_OF_TURN(turn) (((turn) * TEAM_THREADS + LANE % TEAM_THREADS) / (CHUNK / 4))
#define K_OF_TURN(turn) (((turn) * TEAM_THREADS + LANE % TEAM_THREADS) % (CHUNK / 4) * 4)

// A barrier of a team, which is within a wave. Over several chunks, groups whose teams stay together are faster.
#if SHARE > CHUNK
#define TEAM_BARRIER() BARRIER()
#else
#define TEAM_BARRIER() WAVE_BARRIER()
#endif

// Four elements of a row of shared memory, from k on; 0 from `end` on.
FUNCTION QUAD quad_at(GLOBAL const S *row, int k, int end) {
    Quad q;
#pragma unroll
    for (int j = 0; j < (int)sizeof(QUAD) / 4; j++) q.parts[j] = 0;
#ifdef QUADS
    if (k < end) q.all = CAT(seen_, QUAD)((GLOBAL const QUAD *)(row + k));
#else
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (k + j < end) q.each[j] = CAT(seen_, BITS)((GLOBAL const BITS *)row + (k + j));
#endif
    return q.all;
}

FUNCTION u32 is_incomplete(QUAD quad) {
    Quad q;
    q.all = quad;
    u32 found = 0;
#pragma unroll
    for (int j = 0; j < (int)sizeof(QUAD) / 4; j++) found |= MARK_IN(q.parts[j]);
    return found;
}

// Reads the quads of a thread of a chunk. Only those that are not complete are read, if `again` is set.
FUNCTION void read_quads(QUAD *quads, GLOBAL const S *rows, i64 n, int k, int end, int again) {
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int row = ROW_OF_TURN(turn);
        if (!again || is_incomplete(quads[turn]))
            quads[turn] = quad_at(rows + row * (i64)K, k + K_OF_TURN(turn), row < n ? end : 0);
    }
}

FUNCTION u32 are_incomplete(const QUAD *quads) {
    u32 found = 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) found |= is_incomplete(quads[turn]);
    return found;
}

// The sums of a team for n rows [n, K] of shared memory, to its part of `regions`.
LOCAL_FUNCTION void multiply_rows(GLOBAL const S *rows, i64 n, LOCAL const S *weights, LOCAL f32 *regions) {
    int team = LANE / TEAM_THREADS, column = LANE % TEAM_THREADS % COLUMN_GROUPS, row = LANE % TEAM_THREADS / COLUMN_GROUPS;
    int first = team * SHARE, end = first + SHARE < K ? first + SHARE : K;
    LOCAL f32 *own = regions + team * REGION;
    f32 sums[OWN_ROWS][OWN_COLUMNS];
#pragma unroll
    for (int r = 0; r < OWN_ROWS; r++)
#pragma unroll
        for (int c = 0; c < OWN_COLUMNS; c++) sums[r][c] = 0;
    QUAD quads[TURNS];
    read_quads(quads, rows, n, first, end, 0);
    for (int chunk = 0; chunk < SHARE; chunk += CHUNK) {
        while (are_incomplete(quads)) read_quads(quads, rows, n, first + chunk, end, 1);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            f32 v[4];
            numbers_of_quad(v, quads[turn]);
            LOCAL f32 *to = own + ROW_OF_TURN(turn) * STRIDE + K_OF_TURN(turn);
#pragma unroll
            for (int j = 0; j < 4; j++) to[j] = v[j];
        }
        if (chunk + CHUNK < SHARE) read_quads(quads, rows, n, first + chunk + CHUNK, end, 0);
        TEAM_BARRIER();
        LOCAL const QUAD *at = (LOCAL const QUAD *)weights + (first + chunk) / 4 * COLUMNS + column;
        int left = (SHARE - chunk < CHUNK ? SHARE - chunk : CHUNK) / 4;
#pragma unroll 2
        for (int q = 0; q < left; q++) {
            f32 w[OWN_COLUMNS][4];
#pragma unroll
            for (int c = 0; c < OWN_COLUMNS; c++) numbers_of_quad(w[c], at[q * COLUMNS + c * COLUMN_GROUPS]);
#pragma unroll
            for (int r = 0; r < OWN_ROWS; r++) {
                u32x4 four = *(LOCAL const u32x4 *)(own + (r * ROW_GROUPS + row) * STRIDE + q * 4);
                f32 h[4] = {as_f32(four.x), as_f32(four.y), as_f32(four.z), as_f32(four.w)};
#pragma unroll
                for (int c = 0; c < OWN_COLUMNS; c++)
#pragma unroll
                    for (int j = 0; j < 4; j++) sums[r][c] += h[j] * w[c][j];
            }
        }
        TEAM_BARRIER();
    }
#pragma unroll
    for (int r = 0; r < OWN_ROWS; r++)
#pragma unroll
        for (int c = 0; c < OWN_COLUMNS; c++) own[(r * ROW_GROUPS + row) * COLUMNS + c * COLUMN_GROUPS + column] = sums[r][c];
}

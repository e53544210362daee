// Matrix products: y = activation(alpha a @ b + beta c), or a row of alpha a @ b and c, for a [B, M, K], b [B, K, N] and
// c [B, M, N] of any strides, y [B, M, N] contiguous. S is the storage type, A the arithmetic's. With beta 0, c is not read.
//
// If there are few results with long sums, K is divided into parts. Each part writes its products to `parts`, [PARTS, B, M, N] in
// the arithmetic's type, and gemm_sum adds them in a fixed order.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of a, b, c and y
// ACC: f32 or f64, dtype of the arithmetic
// WIDE: flag, positions have 64 bits
// VECTOR: 1 .. 16, elements of a word
// WORD: u16 .. u32x4, type of a word
// ACTIVATION, KEEPS_SUM, JOIN, HAS_C: as in finish.h
// EXTENT_M, EXTENT_N, EXTENT_K, BATCHES: M, N, K and B
// A_STRIDES, B_STRIDES, C_STRIDES: strides of batch, row and column; of the factors of gemm: loader.h
// N_PARTS, PART_K: parts of K, and their columns of a
// FIRST_BATCH: the matrix with which the launch begins
// gemm:
//   TILES_M, TILES_N: tiles along M and N
//   Y_HAS_WORDS: 0 or 1, y is aligned to words
//   TILE_M, TILE_N: power of 2, results of a group
//   TILE_K: power of 2, columns of a that are in local memory at a time
//   RESULTS_M, RESULTS_N: power of 2, results of a thread
//   RUN: power of 2, neighbouring results of a thread
//   RUN_WORD, STORE_WORD: u16 .. u32x4, type of RUN numbers of ACC and of T
//   A_VECTOR, B_VECTOR, A_ALONG_K, B_ALONG_K: as in loader.h; A_VECTOR and B_VECTOR are 1 or VECTOR
// gemv:
//   N_ROWS, BLOCKS: rows of the matrix, and blocks of them
//   A_STRIDES, X_STRIDES: of the matrix and of the vectors: of batch, row and K
//   Y_STRIDES: strides of a row of the matrix and of a vector in y
//   LANES: power of 2, threads side by side where the matrix is contiguous
//   TEAM: LANES
//   COLUMNS: 1.., vectors
//   TOGETHER: 1 .. COLUMNS, vectors whose sums are put together at once
//   ALONG_K: 0 or 1, the matrix is contiguous along K; otherwise along the rows
//   HAS_WORDS: 0 or 1, the vectors are read in words
// gemm_outer:
//   ITEMS: blocks of ROWS rows of VECTOR results
//   ROWS: 1.., rows of results of a thread
//   HAS_WORDS: 0 or 1, b is read in words
// gemm_mask:
//   MASK: flag
//   C_STEP: stride of rows of c
//   MASK_WORDS: words of a row of the mask
// gemm_sum:
//   COLUMNS: power of 2, words of a group if several threads add the parts of a word; otherwise THREADS
//   SUM_WORD: u32 .. u32x4, type of VECTOR numbers of ACC

#ifdef TILE_M
#include "matrix/loader.h"
#else
#include "finish.h"
#endif

// VECTOR elements, moved as one word.
typedef union {
    WORD word;
    S each[VECTOR];
} Vector;

#ifdef TILE_M

// gemm: a group computes TILE_M x TILE_N results, a thread RESULTS_M x RESULTS_N of them. Tiles of TILE_K columns of a, and rows of
// b, go through registers to one of two buffers in local memory, while the threads multiply the tiles in the other. In local memory
// K is the first dimension, so that adjacent results read adjacent elements.

// Threads along M and N: of the group, and of 32 threads that run together.
#define GROUP_M (TILE_M / RESULTS_M)
#define GROUP_N (TILE_N / RESULTS_N)
#define WAVE_M (GROUP_M < 8 ? GROUP_M : 8)
#define WAVE_N (32 / WAVE_M)
// A thread's results are in runs of RUN adjacent ones. A run is one word in local memory.
#define STEP_M (GROUP_M * RUN)
#define STEP_N (GROUP_N * RUN)
// 16 bytes of padding per row of local memory, against bank conflicts.
#define PITCH(tile) ((tile) + 16 / (int)sizeof(A))
#define SHARE(tile) ((tile) * TILE_K / THREADS)
// Rows of tiles that run together, so that they share operands in the cache.
#define BAND 8

// RUN values in local memory.
typedef union {
    RUN_WORD word;
    A each[RUN];
} Run;

// RUN results.
typedef union {
    STORE_WORD word;
    S each[RUN];
} Stored;

// 16 bytes of local memory.
typedef union {
    u32x4 word;
    A each[16 / sizeof(A)];
} Quad;

// The first element of a tile [tile, TILE_K] that thread e takes. Adjacent threads take adjacent elements in memory.
FUNCTION int share_k(int e, int tile, int along_k, int vector) {
    int line = vector > 1 ? 32 / (vector * (int)sizeof(S)) : TILE_K;
    int lanes = line < TILE_K / vector ? line : TILE_K / vector;
    return along_k ? (e % lanes + e / (lanes * tile) * lanes) * vector : e / (tile / vector);
}

FUNCTION int share_row(int e, int tile, int along_k, int vector) {
    int line = vector > 1 ? 32 / (vector * (int)sizeof(S)) : TILE_K;
    int lanes = line < TILE_K / vector ? line : TILE_K / vector;
    return along_k ? e / lanes % tile : e % (tile / vector) * vector;
}

// This thread's share of the first tile of a factor. Elements beyond `rows` and `columns` are 0.
FUNCTION void fetch(Factor f, int side, int rows, int columns, int tile, int along_k, int vector, S *share) {
#pragma unroll
    for (int i = 0; i < SHARE(tile) / vector; i++) {
        int e = LANE + i * THREADS;
        int row = share_row(e, tile, along_k, vector), k = share_k(e, tile, along_k, vector);
        int is_inside = row < rows && k < columns && has_element(f, side, row, k);
        if (vector > 1) {
            Vector v;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) v.each[j] = 0;
            if (is_inside) v.word = *(GLOBAL const WORD *)element(f, side, row, k);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) share[i * VECTOR + j] = v.each[j];
        } else {
            share[i] = is_inside ? *element(f, side, row, k) : (S)0;
        }
    }
}

// Writes the share to local memory [TILE_K, PITCH(tile)].
LOCAL_FUNCTION void keep(LOCAL A *to, int tile, int along_k, int vector, const S *share) {
#pragma unroll
    for (int i = 0; i < SHARE(tile) / vector; i++) {
        int e = LANE + i * THREADS;
        LOCAL A *at = to + share_k(e, tile, along_k, vector) * PITCH(tile) + share_row(e, tile, along_k, vector);
        if (vector > 1 && !along_k) {
            Quad q;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) q.each[j] = LOAD(T, share, i * VECTOR + j);
            *(LOCAL u32x4 *)at = q.word;
        } else {
#pragma unroll
            for (int j = 0; j < vector; j++) at[j * PITCH(tile)] = LOAD(T, share, i * vector + j);
        }
    }
}

LOCAL_FUNCTION void read(LOCAL const A *from, int results, int step, A *values) {
#pragma unroll
    for (int i = 0; i < results / RUN; i++) {
        Run run;
        run.word = *(LOCAL const RUN_WORD *)(from + i * step);
#pragma unroll
        for (int j = 0; j < RUN; j++) values[i * RUN + j] = run.each[j];
    }
}

KERNEL(gemm)(GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, GLOBAL A *parts, Ints p,
             A alpha, A beta LOADER_ARGUMENTS) {
    LET_NEXT_START();
    i64 m = EXTENT_M, n = EXTENT_N, batches = BATCHES;
    int tiles_m = (int)TILES_M, tiles_n = (int)TILES_N, n_parts = (int)N_PARTS;
    SHARED(u32x4, all_a, 2 * TILE_K * PITCH(TILE_M) * sizeof(A) / 16);
    SHARED(u32x4, all_b, 2 * TILE_K * PITCH(TILE_N) * sizeof(A) / 16);

    // The tile, the matrix, and the part of K.
    int tiles = tiles_m * tiles_n, tile = (int)GROUP % tiles, rest_of_groups = (int)GROUP / tiles;
    i64 part = rest_of_groups % n_parts, batch = FIRST_BATCH + rest_of_groups / n_parts;
    int top = tile / (BAND * tiles_n) * BAND, height = tiles_m - top < BAND ? tiles_m - top : BAND;
    int within = tile - top * tiles_n;
    i64 m0 = (top + within % height) * (i64)TILE_M, n0 = within / height * (i64)TILE_N;
    i64 first = part * PART_K, k_end = EXTENT_K - first < PART_K ? EXTENT_K : first + PART_K, k0 = first;
    int rows = (int)(m - m0 < TILE_M ? m - m0 : TILE_M), columns = (int)(n - n0 < TILE_N ? n - n0 : TILE_N);

    // The positions of this thread's results.
    int wave = LANE / 32, lane = LANE % 32;
    int own_m = (wave % (GROUP_M / WAVE_M) * WAVE_M + lane / WAVE_N) * RUN;
    int own_n = (wave / (GROUP_M / WAVE_M) * WAVE_N + lane % WAVE_N) * RUN;

    A sums[RESULTS_M * RESULTS_N];
#pragma unroll
    for (int i = 0; i < RESULTS_M * RESULTS_N; i++) sums[i] = 0;
    S share_a[SHARE(TILE_M)], share_b[SHARE(TILE_N)];
    Factor of_a = factor(a, p, SIDE_A, batch, m0, k0 LOADER_VALUES), of_b = factor(b, p, SIDE_B, batch, n0, k0 LOADER_VALUES);
    LOCAL A *tile_a = (LOCAL A *)all_a, *tile_b = (LOCAL A *)all_b;
    int depth = (int)(k_end - k0 < TILE_K ? k_end - k0 : TILE_K);
    fetch(of_a, SIDE_A, rows, depth, TILE_M, A_ALONG_K, A_VECTOR, share_a);
    fetch(of_b, SIDE_B, columns, depth, TILE_N, B_ALONG_K, B_VECTOR, share_b);
    keep(tile_a, TILE_M, A_ALONG_K, A_VECTOR, share_a);
    keep(tile_b, TILE_N, B_ALONG_K, B_VECTOR, share_b);
    BARRIER();
    for (int place = 0; k0 < k_end; k0 += TILE_K, place ^= 1) {
        i64 rest = k_end - k0 - TILE_K;
        if (rest > 0) {
            advance(&of_a, SIDE_A, TILE_K);
            advance(&of_b, SIDE_B, TILE_K);
            depth = (int)(rest < TILE_K ? rest : TILE_K);
            fetch(of_a, SIDE_A, rows, depth, TILE_M, A_ALONG_K, A_VECTOR, share_a);
            fetch(of_b, SIDE_B, columns, depth, TILE_N, B_ALONG_K, B_VECTOR, share_b);
        }
        LOCAL const A *from_a = tile_a + place * (TILE_K * PITCH(TILE_M)) + own_m;
        LOCAL const A *from_b = tile_b + place * (TILE_K * PITCH(TILE_N)) + own_n;
#pragma unroll
        for (int k = 0; k < TILE_K; k++) {
            A va[RESULTS_M], vb[RESULTS_N];
            read(from_a + k * PITCH(TILE_M), RESULTS_M, STEP_M, va);
            read(from_b + k * PITCH(TILE_N), RESULTS_N, STEP_N, vb);
#pragma unroll
            for (int i = 0; i < RESULTS_M; i++)
#pragma unroll
                for (int j = 0; j < RESULTS_N; j++)
                    sums[i * RESULTS_N + j] = fma_(va[i], vb[j], sums[i * RESULTS_N + j]);
            // Without this, 8-byte numbers are read too far ahead.
            if (k < TILE_K - 1 && sizeof(A) < 8) continue;
#pragma unroll
            for (int i = 0; i < RESULTS_M * RESULTS_N; i++) COMPUTED(sums[i]);
        }
        if (rest > 0) {
            keep(tile_a + (place ^ 1) * (TILE_K * PITCH(TILE_M)), TILE_M, A_ALONG_K, A_VECTOR, share_a);
            keep(tile_b + (place ^ 1) * (TILE_K * PITCH(TILE_N)), TILE_N, B_ALONG_K, B_VECTOR, share_b);
            BARRIER();
        }
    }

    GLOBAL A *to_part = parts + ((part * batches + batch) * m + m0) * n + n0;
    GLOBAL S *to = y + (batch * m + m0) * n + n0, *to_z = z + (batch * m + m0) * n + n0;
    GLOBAL const S *from = c + (batch * C_STRIDES(0) + m0 * C_STRIDES(1) + n0 * C_STRIDES(2));
    // Rows of y are aligned to words.
    int has_words = n % RUN == 0 && Y_HAS_WORDS;
#pragma unroll
    for (int i = 0; i < RESULTS_M; i++) {
        int row = own_m + i / RUN * STEP_M + i % RUN;
#pragma unroll
        for (int j = 0; j < RESULTS_N; j += RUN) {
            int column = own_n + j / RUN * STEP_N;
            if (row >= rows || column >= columns) continue;
            if (n_parts > 1) {
#pragma unroll
                for (int r = 0; r < RUN; r++)
                    if (column + r < columns) to_part[row * n + column + r] = sums[i * RESULTS_N + j + r];
                continue;
            }
            Stored out, sum;
#pragma unroll
            for (int r = 0; r < RUN; r++) {
                A v = alpha * sums[i * RESULTS_N + j + r];
                FINISH(v, column + r < columns, from, row * C_STRIDES(1) + (column + r) * C_STRIDES(2), out.each, sum.each, r);
            }
            if (has_words) {
                *(GLOBAL STORE_WORD *)(to + (row * n + column)) = out.word;
                if (KEEPS_SUM) *(GLOBAL STORE_WORD *)(to_z + (row * n + column)) = sum.word;
            } else {
#pragma unroll
                for (int r = 0; r < RUN; r++) {
                    if (column + r >= columns) continue;
                    to[row * n + column + r] = out.each[r];
                    if (KEEPS_SUM) to_z[row * n + column + r] = sum.each[r];
                }
            }
        }
    }
#ifdef HAS_ABSENT
    int is_nan = 0;
#pragma unroll
    for (int i = 0; i < RESULTS_M * RESULTS_N; i++) is_nan |= sums[i] != sums[i];
    if (!is_nan) return;
    for (int i = 0; i < RESULTS_M * RESULTS_N; i++) {
        int of_row = i / RESULTS_N, of_column = i % RESULTS_N;
        int row = own_m + of_row / RUN * STEP_M + of_row % RUN, column = own_n + of_column / RUN * STEP_N + of_column % RUN;
        AGAIN(row, column, first);
    }
#endif
}

#elif defined(LANES)

// gemv: a matrix [B, ROWS, K] times COLUMNS vectors [B, COLUMNS, K]. LANES threads are side by side where the matrix is contiguous:
// along K (ALONG_K), where they are a team, or along the rows. A group computes BLOCK rows. Without teams, SLOTS waves or threads
// join the sums of TOGETHER vectors at once.

#if ALONG_K
#define BLOCK (THREADS / LANES)
#else
#define BLOCK (LANES * VECTOR)
// Threads at this distance have other sums, or are in another wave.
#define APART (LANES < WAVE ? WAVE : LANES)
#define SLOTS (THREADS / APART)
#endif

KERNEL(gemv)(GLOBAL const S *a, GLOBAL const S *x, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, GLOBAL A *parts, Ints p,
             A alpha, A beta) {
    LET_NEXT_START();
    i64 rows = N_ROWS, batches = BATCHES;
    idx a_row = VECTOR > 1 && !ALONG_K ? 1 : (idx)A_STRIDES(1), a_k = VECTOR > 1 && ALONG_K ? 1 : (idx)A_STRIDES(2);
    idx x_column = (idx)X_STRIDES(1), x_k = (idx)X_STRIDES(2);
    int blocks = (int)BLOCKS, n_parts = (int)N_PARTS, block = (int)GROUP % blocks, rest = (int)GROUP / blocks;
    i64 part = rest % n_parts, batch = FIRST_BATCH + rest / n_parts;
    i64 row0 = block * (i64)BLOCK, k0 = part * PART_K;
    idx k_end = (idx)(EXTENT_K - k0 < PART_K ? EXTENT_K - k0 : PART_K);
    int left = (int)(rows - row0 < BLOCK ? rows - row0 : BLOCK);
    GLOBAL const S *at = a + (batch * A_STRIDES(0) + row0 * A_STRIDES(1) + k0 * A_STRIDES(2));
    GLOBAL const S *factors = x + (batch * X_STRIDES(0) + k0 * X_STRIDES(2));
    // The start of the results of the batch, or of its part.
    i64 to = (n_parts > 1 ? part * batches + batch : batch) * rows * COLUMNS;
    A own[COLUMNS * VECTOR];
#pragma unroll
    for (int i = 0; i < COLUMNS * VECTOR; i++) own[i] = 0;

#define RESULT(row, column, sum) \
    do { \
        i64 r = row0 + (row), i = to + r * Y_STRIDES(0) + (column) * Y_STRIDES(1); \
        A v = alpha * (sum); \
        if (n_parts > 1) { \
            parts[i] = sum; \
        } else { \
            FINISH(v, 1, c, batch * C_STRIDES(0) + r * C_STRIDES(1) + (column) * C_STRIDES(2), y, z, i); \
        } \
    } while (0)

#if ALONG_K
    int row = LANE / LANES;
    JOINS(COLUMNS);
    if (row < left) {
#pragma unroll 4
        for (idx k = MEMBER * VECTOR; k < k_end; k += LANES * VECTOR) {
            Vector v, f;
            v.word = *(GLOBAL const WORD *)(at + (row * a_row + k * a_k));
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
#if HAS_WORDS
                f.word = *(GLOBAL const WORD *)(factors + (i * x_column + k));
#else
#pragma unroll
                for (int j = 0; j < VECTOR; j++) f.each[j] = factors[i * x_column + (k + j) * x_k];
#endif
#pragma unroll
                for (int j = 0; j < VECTOR; j++)
                    own[i * VECTOR + j] = fma_(LOAD(T, v.each, j), LOAD(T, f.each, j), own[i * VECTOR + j]);
            }
        }
    }
    A sums[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        sums[i] = own[i * VECTOR];
#pragma unroll
        for (int j = 1; j < VECTOR; j++) sums[i] += own[i * VECTOR + j];
    }
    team_join(sums, COLUMNS, SIDE(COLUMNS), 0);
    // All threads of a team have all sums.
#pragma unroll
    for (int first = 0; first < COLUMNS; first += LANES) {
        A sum = sums[first];
#pragma unroll
        for (int i = 1; i < LANES; i++)
            if (first + i < COLUMNS && MEMBER == i) sum = sums[first + i < COLUMNS ? first + i : 0];
        if (row < left && first + MEMBER < COLUMNS) RESULT(row, first + MEMBER, sum);
    }
#else
    SHARED(A, shared, SLOTS * TOGETHER * BLOCK);
    int slot = LANE / APART, row = LANE % LANES * VECTOR;
    if (row < left) {
#pragma unroll 4
        for (idx k = LANE / LANES; k < k_end; k += THREADS / LANES) {
            Vector v;
            v.word = *(GLOBAL const WORD *)(at + (row * a_row + k * a_k));
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                A f = LOAD(T, factors, i * x_column + k * x_k);
#pragma unroll
                for (int j = 0; j < VECTOR; j++) own[i * VECTOR + j] = fma_(LOAD(T, v.each, j), f, own[i * VECTOR + j]);
            }
        }
    }
#if WAVE > 1
#pragma unroll
    for (int i = 0; i < COLUMNS * VECTOR; i++) {
#pragma unroll
        for (int by = LANES; by < WAVE; by *= 2) {
            A other = from_lane(own[i], by);
            own[i] += other;
        }
    }
#endif
#pragma unroll
    for (int first = 0; first < COLUMNS; first += TOGETHER) {
        int columns = COLUMNS - first < TOGETHER ? COLUMNS - first : TOGETHER;
        if (first > 0) BARRIER();
#pragma unroll
        for (int i = 0; i < TOGETHER * VECTOR; i++)
            if (i < columns * VECTOR && LANE % APART < LANES)
                shared[(slot * TOGETHER + i / VECTOR) * BLOCK + row + i % VECTOR] = own[first * VECTOR + i];
        BARRIER();
        for (int e = LANE; e < columns * BLOCK; e += THREADS) {
            A sum = shared[e];
#pragma unroll
            for (int s = 1; s < SLOTS; s++) sum += shared[s * TOGETHER * BLOCK + e];
            if (e % BLOCK < left) RESULT(e % BLOCK, first + e / BLOCK, sum);
        }
    }
#endif
}

#elif defined(ROWS)

// gemm_outer: sums of so few products that the time is that of writing them. A thread computes ROWS rows of VECTOR results.

KERNEL(gemm_outer)(GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, Ints p, A alpha,
                   A beta) {
    i64 m = EXTENT_M, n = EXTENT_N, items = ITEMS;
    idx words = (idx)(n / VECTOR), blocks = (idx)((m + ROWS - 1) / ROWS);
    for (i64 item = GROUP * THREADS + LANE; item < items; item += GROUPS * THREADS) {
        idx block = (idx)item / words % blocks;
        i64 batch = (idx)item / words / blocks, column = (idx)item % words * (i64)VECTOR, row0 = block * (i64)ROWS;
        GLOBAL const S *at_a = a + (batch * A_STRIDES(0) + row0 * A_STRIDES(1)), *at_b = b + (batch * B_STRIDES(0) + column * B_STRIDES(1));
        int left = (int)(m - row0 < ROWS ? m - row0 : ROWS);
        A own[ROWS * VECTOR];
#pragma unroll
        for (int i = 0; i < ROWS * VECTOR; i++) own[i] = 0;
#pragma unroll 4
        for (int k = 0; k < (int)EXTENT_K; k++) {
            Vector v;
#if HAS_WORDS
            v.word = *(GLOBAL const WORD *)(at_b + k * B_STRIDES(2));
#else
#pragma unroll
            for (int j = 0; j < VECTOR; j++) v.each[j] = at_b[j * B_STRIDES(1) + k * B_STRIDES(2)];
#endif
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                A f = r < left ? LOAD(T, at_a, r * A_STRIDES(1) + k * A_STRIDES(2)) : 0;
#pragma unroll
                for (int j = 0; j < VECTOR; j++) own[r * VECTOR + j] = fma_(f, LOAD(T, v.each, j), own[r * VECTOR + j]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= left) continue;
            i64 to = (batch * m + row0 + r) * n + column;
            GLOBAL const S *from = c + (batch * C_STRIDES(0) + (row0 + r) * C_STRIDES(1) + column * C_STRIDES(2));
            Vector out, sum;
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                A v = alpha * own[r * VECTOR + j];
                FINISH(v, 1, from, j * C_STRIDES(2), out.each, sum.each, j);
            }
            *(GLOBAL WORD *)(y + to) = out.word;
            if (KEEPS_SUM) *(GLOBAL WORD *)(z + to) = sum.word;
        }
    }
}

#elif defined(MASK)

// gemm_mask: a bit mask of the nonzero elements of a row of ones and of c [M, N], which is contiguous along N. A row of the mask
// has `words` words, lowest bits first.
KERNEL(gemm_mask)(GLOBAL const S *c, GLOBAL u32 *mask, Ints p) {
    idx m = EXTENT_M, n = EXTENT_N, words = MASK_WORDS;
    for (i64 i = GROUP * THREADS + LANE; i < (i64)m * words; i += GROUPS * THREADS) {
        idx row = (idx)i / words, column = (idx)i % words * 32;
        GLOBAL const S *at = c + (row * C_STEP + column);
        u32 bits = 0;
#pragma unroll
        for (int k = 0; k < 32; k += VECTOR) {
            Vector v;
            // Whole words are either within a row or beyond it.
            if (column + k >= n) continue;
            v.word = *(GLOBAL const WORD *)(at + k);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) bits |= (u32)(join(1, LOAD(T, v.each, j)) != 0) << (k + j);
        }
        mask[i] = bits;
    }
}

#else

#include "reduction/columns.h"

// VECTOR sums.
typedef union {
    SUM_WORD word;
    A each[VECTOR];
} Sums;

// gemm_sum: alpha times the sum of the parts, in a fixed order, plus beta c, and its activation; without parts, beta c. y may be the memory
// of a single part.
KERNEL(gemm_sum)(GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, GLOBAL const A *parts, Ints p, A alpha, A beta) {
    COLUMN_JOINS(VECTOR);
    AWAIT_PREVIOUS();
    idx m = (idx)EXTENT_M, words = (idx)EXTENT_N / VECTOR;
    i64 items = EXTENT_M * BATCHES * words;
    int n_parts = (int)N_PARTS;
    for (i64 first = GROUP * COLUMNS; first < items; first += GROUPS * COLUMNS) {
        i64 i = first + LANE % COLUMNS;
        A sums[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; j++) sums[j] = 0;
#pragma unroll 4
        for (int part = WORKER; part < (i < items ? n_parts : 0); part += MEMBERS) {
            Sums read;
            read.word = ((GLOBAL const SUM_WORD *)parts)[part * items + i];
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sums[j] += read.each[j];
        }
        column_sums(sums, VECTOR, shared);
        if (i >= items || WORKER > 0) continue;
        idx row = (idx)i / words, column = (idx)i % words * VECTOR;
        GLOBAL const S *from = c + (row / m * C_STRIDES(0) + row % m * C_STRIDES(1) + column * C_STRIDES(2));
        Vector out, sum;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            A v = n_parts > 0 ? alpha * sums[j] : 0;
            FINISH(v, 1, from, j * C_STRIDES(2), out.each, sum.each, j);
        }
        ((GLOBAL WORD *)y)[i] = out.word;
        if (KEEPS_SUM) ((GLOBAL WORD *)z)[i] = sum.word;
    }
}

#endif

// Matrix products of f16 and bf16 on tensor cores, sums in f32: gemm of matmul.c, with the same arguments, for operands that
// are contiguous along one dimension in whole words of 16 bytes. Compute capability 8.0 and later.
//
// A group of four waves computes TILE_M x TILE_N results, each wave a quarter of them. Tiles of TILE_K = 32 columns of a, and rows
// of b, are copied to local memory while earlier ones are multiplied. STAGES tiles are in local memory or in flight. A wave reads
// the operands of its next instructions while it multiplies.
//
// THREADS: 128
// T: f16 or bf16, dtype of a, b, c and y
// ACC: f32
// TILE_M, TILE_N: 64 or 128, results of a group
// TILE_K: 32, columns of a in a copy
// A_ALONG_K, B_ALONG_K: 0 or 1, a factor is contiguous along K; otherwise along its rows
// ACTIVATION, KEEPS_SUM, JOIN: as in finish.h
// WIDE: flag, positions have 64 bits

#include "matrix/matrix.h"
#define A_VECTOR CHUNK
#define B_VECTOR CHUNK
#define WORDS_TOGETHER 4
#include "matrix/loader.h"
#include "matrix/tile.h"

#define STAGES 3
#define WAVE_TILE_M (TILE_M / 2)
#define WAVE_TILE_N (TILE_N / 2)
// Blocks of a wave: 16 rows of a, and 8 columns of b, per instruction.
#define BLOCKS_M (WAVE_TILE_M / 16)
#define BLOCKS_N (WAVE_TILE_N / 8)

#include "matrix/share.h"

KERNEL(gemm_mma)(GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, GLOBAL A *parts, Ints p,
                 A alpha, A beta LOADER_ARGUMENTS) {
    SHARED(u32x4, tiles, STAGES * (TILE_M + TILE_N) * CHUNKS_K);
    LocalPlace first = local_place(tiles);
#define PLACE_A(stage) (first + (u32)(stage) * ((TILE_M + TILE_N) * CHUNKS_K * 16))
#define PLACE_B(stage) (PLACE_A(stage) + TILE_M * CHUNKS_K * 16)

    TILE_OF_GROUP();

    Factor of_a = factor(a, p, SIDE_A, batch, m0, k0 LOADER_VALUES), of_b = factor(b, p, SIDE_B, batch, n0, k0 LOADER_VALUES);
    int steps = (int)((k_end - k0 + TILE_K - 1) / TILE_K), depth = (int)(k_end - k0);
    Share share_a = share(of_a, SIDE_A, rows, TILE_M, A_ALONG_K), share_b = share(of_b, SIDE_B, columns, TILE_N, B_ALONG_K);
    // The stage that is filled next, and the stage that is multiplied.
    u32 filling = 0, used = 0;
#define NEXT(stage) ((stage) + 1 == STAGES ? 0 : (stage) + 1)
#define COPY(step) \
    if ((step) < steps) { \
        Offset at_a[WORDS_OF(TILE_M)], at_b[WORDS_OF(TILE_N)]; \
        find(share_a, SIDE_A, (step) * TILE_K, depth - (step) * TILE_K, TILE_M, A_ALONG_K, at_a); \
        find(share_b, SIDE_B, (step) * TILE_K, depth - (step) * TILE_K, TILE_N, B_ALONG_K, at_b); \
        copy_words(share_a, a, at_a, TILE_M, A_ALONG_K, PLACE_A(filling)); \
        copy_words(share_b, b, at_b, TILE_N, B_ALONG_K, PLACE_B(filling)); \
    } \
    filling = NEXT(filling); \
    end_group_of_copies()
#pragma unroll
    for (int step = 0; step < STAGES; step++) {
        COPY(step);
    }

    int wave = LANE / 32;
    int own_m = wave % 2 * WAVE_TILE_M, own_n = wave / 2 * WAVE_TILE_N;
    f32 sums[BLOCKS_M][BLOCKS_N][SUMS];
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int r = 0; r < SUMS; r++) sums[i][j][r] = 0;

    // Operands of 16 columns, and of the next 16.
    u32 va[2][BLOCKS_M][4], vb[2][BLOCKS_N / 2][4];
#define READ_OPERANDS(buffer, k) \
    _Pragma("unroll") for (int i = 0; i < BLOCKS_M; i++) \
        load_a(PLACE_A(used), own_m + i * 16, k, TILE_M, A_ALONG_K, va[buffer][i]); \
    _Pragma("unroll") for (int j = 0; j < BLOCKS_N / 2; j++) \
        load_b(PLACE_B(used), own_n + j * 16, k, TILE_N, B_ALONG_K, vb[buffer][j]);
    wait_for_copies(STAGES - 1);
    BARRIER();
    READ_OPERANDS(0, 0)
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int k = 0; k < TILE_K / 16; k++) {
            if (k == TILE_K / 16 - 1) {
                // The next tile is complete for every thread, and all threads have finished reading this one: another takes its place.
                wait_for_copies(STAGES - 2);
                BARRIER();
                used = NEXT(used);
                COPY(step + STAGES);
            }
            READ_OPERANDS((k + 1) % 2, (k + 1) % (TILE_K / 16) * 16)
#pragma unroll
            for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
                for (int j = 0; j < BLOCKS_N; j++) multiply(sums[i][j], va[k % 2][i], vb[k % 2][j / 2] + j % 2 * 2);
        }
    }

    RESULTS_OF_TILE();
    int has_words = n % 2 == 0 && Y_HAS_WORDS;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            int row = own_m + i * 16 + RESULT_ROW(pair);
            if (row >= rows) continue;
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++) {
                int column = own_n + j * 8 + RESULT_COLUMN;
#define SUM_OF(r) sums[i][j][pair * 2 + (r)]
                PUT_RESULTS(u32, 2, row, column, SUM_OF);
            }
        }
#ifdef HAS_ABSENT
#define ROW_OF_SUM(i, r) (own_m + (i) * 16 + RESULT_ROW((r) / 2))
#define COLUMN_OF_SUM(j, r) (own_n + (j) * 8 + RESULT_COLUMN + (r) % 2)
    AGAIN_IF_NAN(SUMS, ROW_OF_SUM, COLUMN_OF_SUM);
#endif
}

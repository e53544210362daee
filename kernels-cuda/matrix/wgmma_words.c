// Matrix products of f16 and bf16 on Hopper's matrix units, sums in f32, whose operands threads copy in words of 16 bytes: gemm of
// matmul.c, with the same arguments, for loaders whose words are not the lines of a matrix.
//
// A group of eight waves computes TILE_M x TILE_N results, four waves each half of the rows. Tiles of TILE_K columns of a, and rows of
// b, are copied to local memory while earlier ones are multiplied. STAGES tiles are in local memory: one is multiplied, and the others
// are in flight. The places of a tile's words are found a step before it is copied, because a loader may read them from memory.
//
// THREADS: 256
// T: f16 or bf16, dtype of a, b, c and y
// ACC: f32
// TILE_M: 128, rows of results of a group
// TILE_N: 64, 128 or 256, columns of results of a group; N is a multiple of 8, and y is aligned to words
// TILE_K: 64, columns of a in a copy
// STAGES: 3.., tiles in local memory
// A_ALONG_K, B_ALONG_K: 0 or 1, a factor is contiguous along K; otherwise along its rows
// ACTIVATION, KEEPS_SUM, JOIN: as in finish.h
// WIDE: flag, positions have 64 bits

#include "copies.h"
#include "matrix/products.h"
CAT(PRODUCT_, TILE_N)(product, T, A_ALONG_K, B_ALONG_K)
#define SUMS SUMS_OF(TILE_N)
#define A_VECTOR CHUNK
#define B_VECTOR CHUNK
#define WORDS_TOGETHER (TILE_N > TILE_M ? 8 : 4)
#include "matrix/loader.h"

// Of products.h.
FUNCTION u32 place(int row, int k, int tile, int along_k) {
    return along_k ? (u32)(row * LINE + (k / CHUNK ^ (row & 7)) * 16)
                   : (u32)(row / 64 * BOX + k * LINE + (row % 64 / CHUNK ^ (k & 7)) * 16);
}
#define LINE_BYTES(tile, along_k) LINE
#include "matrix/share.h"

// Tiles in flight.
#define AHEAD (STAGES - 1)
#define BYTES ((TILE_M + TILE_N) * LINE)
// Rows of tiles that run together, so that they share operands in the cache.
#define BAND 8

typedef union {
    u32 word;
    S each[2];
} Pair;

KERNEL(gemm_wgmma_words)(GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, GLOBAL A *parts, Ints p,
                         A alpha, A beta LOADER_ARGUMENTS) {
    i64 m = EXTENT_M, n = EXTENT_N, batches = BATCHES;
    int tiles_m = (int)TILES_M, tiles_n = (int)TILES_N, n_parts = (int)N_PARTS;
    SHARED_GIVEN(u8, given, STAGES * BYTES + 1024);
    LocalPlace tiles = (local_place(given) + 1023) & ~(LocalPlace)1023;
#define PLACE_A(stage) (tiles + (stage) * BYTES)
#define PLACE_B(stage) (PLACE_A(stage) + TILE_M * LINE)

    // The tile, the matrix, and the part of K.
    int n_tiles = tiles_m * tiles_n, tile = (int)GROUP % n_tiles, rest_of_groups = (int)GROUP / n_tiles;
    i64 part = rest_of_groups % n_parts, batch = FIRST_BATCH + rest_of_groups / n_parts;
    int top = tile / (BAND * tiles_n) * BAND, height = tiles_m - top < BAND ? tiles_m - top : BAND;
    int within = tile - top * tiles_n;
    i64 m0 = (top + within % height) * (i64)TILE_M, n0 = within / height * (i64)TILE_N;
    i64 k0 = part * PART_K, k_end = EXTENT_K - k0 < PART_K ? EXTENT_K : k0 + PART_K;
    int rows = (int)(m - m0 < TILE_M ? m - m0 : TILE_M), columns = (int)(n - n0 < TILE_N ? n - n0 : TILE_N);

    Factor of_a = factor(a, p, SIDE_A, batch, m0, k0 LOADER_VALUES), of_b = factor(b, p, SIDE_B, batch, n0, k0 LOADER_VALUES);
    int depth = (int)(k_end - k0), steps = (depth + TILE_K - 1) / TILE_K;
    Share share_a = share(of_a, SIDE_A, rows, TILE_M, A_ALONG_K), share_b = share(of_b, SIDE_B, columns, TILE_N, B_ALONG_K);
    Offset at_a[WORDS_OF(TILE_M)], at_b[WORDS_OF(TILE_N)];
#define FIND(step) \
    if ((step) < steps) { \
        find(share_a, SIDE_A, (step) * TILE_K, depth - (step) * TILE_K, TILE_M, A_ALONG_K, at_a); \
        find(share_b, SIDE_B, (step) * TILE_K, depth - (step) * TILE_K, TILE_N, B_ALONG_K, at_b); \
    }
    // The stage that is filled next, and the stage that is multiplied.
    u32 filling = 0, used = 0;
#define NEXT(stage) ((stage) + 1 == STAGES ? 0 : (stage) + 1)
#define COPY(step) \
    if ((step) < steps) { \
        copy_words(share_a, a, at_a, TILE_M, A_ALONG_K, PLACE_A(filling)); \
        copy_words(share_b, b, at_b, TILE_N, B_ALONG_K, PLACE_B(filling)); \
    } \
    filling = NEXT(filling); \
    end_group_of_copies()
#pragma unroll
    for (int step = 0; step < AHEAD; step++) {
        FIND(step);
        COPY(step);
    }
    FIND(AHEAD);

    int half_of_tile = LANE / 128 * 64;
    f32 sums[SUMS];
    for (int step = 0; step < steps; step++) {
        // This tile is complete for every thread, and the units have read the one before, whose place is filled next.
        wait_for_copies(AHEAD - 1);
        SHOW_TO_UNITS();
        WAIT_FOR_PRODUCTS(0);
        BARRIER();
        u64 tile_a = tile_at(PLACE_A(used) + half_of_tile * LINE), tile_b = tile_at(PLACE_B(used));
        used = NEXT(used);
        BEGIN_PRODUCTS();
#pragma unroll
        for (int k = 0; k < TILE_K / 16; k++)
            product(sums, further(tile_a, k * AFTER_16(A_ALONG_K)), further(tile_b, k * AFTER_16(B_ALONG_K)), step > 0 || k > 0);
        END_GROUP_OF_PRODUCTS();
        COPY(step + AHEAD);
        FIND(step + AHEAD + 1);
    }
    WAIT_FOR_PRODUCTS(0);

    int own_m = half_of_tile + LANE / 32 % 4 * 16 + LANE % 32 / 4, own_n = LANE % 4 * 2;
    GLOBAL A *to_part = parts + ((part * batches + batch) * m + m0) * n + n0;
    GLOBAL S *to = y + (batch * m + m0) * n + n0, *to_z = z + (batch * m + m0) * n + n0;
    GLOBAL const S *from = c + (batch * C_STRIDES(0) + m0 * C_STRIDES(1) + n0 * C_STRIDES(2));
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = own_m + half * 8;
        i64 at = row * n;
        if (n_parts > 1) {
#pragma unroll
            for (int block = 0; block < TILE_N / 8; block++) {
                int column = block * 8 + own_n;
                if (row >= rows || column >= columns) continue;
                union {
                    u32x2 word;
                    A each[2];
                } two;
                two.each[0] = sums[block * 4 + half * 2];
                two.each[1] = sums[block * 4 + half * 2 + 1];
                *(GLOBAL u32x2 *)(to_part + (at + column)) = two.word;
            }
            continue;
        }
        // Four blocks of eight columns, which four threads exchange so that each writes a word of one of them.
#pragma unroll
        for (int first = 0; first < TILE_N / 8; first += 4) {
            u32 words[4], kept[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                Pair out, sum;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    int column = (first + j) * 8 + own_n + r;
                    A v = alpha * sums[(first + j) * 4 + half * 2 + r];
                    FINISH(v, row < rows && column < columns, from, row * C_STRIDES(1) + column * C_STRIDES(2), out.each, sum.each, r);
                }
                words[j] = out.word;
                kept[j] = sum.word;
            }
            int column = first * 8 + own_n * 4, is_there = row < rows && column < columns;
            exchange(words);
            if (is_there) *(GLOBAL u32x4 *)(to + (at + column)) = make_uint4(words[0], words[1], words[2], words[3]);
            if (KEEPS_SUM) {
                exchange(kept);
                if (is_there) *(GLOBAL u32x4 *)(to_z + (at + column)) = make_uint4(kept[0], kept[1], kept[2], kept[3]);
            }
        }
    }
#ifdef HAS_ABSENT
    int is_nan = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++) is_nan |= sums[i] != sums[i];
    if (!is_nan) return;
    for (int i = 0; i < SUMS; i++) {
        int row = own_m + i / 2 % 2 * 8, column = i / 4 * 8 + own_n + i % 2;
        AGAIN(row, column, k0);
    }
#endif
}

// Matrix products of f16 and bf16 on Hopper's matrix units, sums in f32, for operands that are contiguous along one dimension in
// whole words of 16 bytes.
//
// A group computes TILE_M x TILE_N = 128 x 256 results at a time. The two groups of a cluster have tiles one below the other and
// share the tile of b: each copies half of it for both. A group has twelve waves. One thread of the first four waves copies tiles
// of TILE_K = 64 to local memory, where STAGES tiles are complete or in flight. The other waves multiply, four per half of the
// tile. Groups are persistent: they start with the next tiles while the last copies are read.

#include "hopper.h"
#include "matrix/products.h"
CAT(PRODUCT_, TILE_N)(product, T, A_ALONG_K, B_ALONG_K)
#define SUMS SUMS_OF(TILE_N)
#include "finish.h"

#undef BOUNDS
#define BOUNDS __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
#define READERS 2
#define BYTES_A (TILE_M * LINE)
#define BYTES_B (TILE_N * LINE)
#define BYTES (BYTES_A + BYTES_B)
// Pairs of tiles that run together, so that they share operands in the cache.
#define BAND 8

// A tile: the matrix, its first row and its first column.
typedef struct {
    i64 batch, m0, n0;
} Place;

FUNCTION Place place_of(i64 number, i64 pairs_m, i64 tiles_n, u32 rank) {
    i64 within = number % (pairs_m * tiles_n), top = within / (BAND * tiles_n) * BAND;
    i64 height = pairs_m - top < BAND ? pairs_m - top : BAND;
    within -= top * tiles_n;
    Place place;
    place.batch = number / (pairs_m * tiles_n);
    place.m0 = ((top + within % height) * CLUSTER + rank) * TILE_M;
    place.n0 = within / height * TILE_N;
    return place;
}

#define PLACE_A(stage) (tiles + (u32)(stage) * BYTES)
#define PLACE_B(stage) (PLACE_A(stage) + BYTES_A)
// The barriers of a stage: it is full; it has been read by all.
#define FULL(stage) (tiles + STAGES * BYTES + (u32)(stage) * 16)
#define EMPTY(stage) (FULL(stage) + 8)
#define NEXT_STAGE() \
    stage = stage + 1 == STAGES ? 0 : stage + 1; \
    parity ^= stage == 0

// Copies all tiles of this group, in steps along K.
FUNCTION void copy_tiles(const TileMap *a, const TileMap *b, const Ints &p, LocalPlace tiles, u32 rank, int steps) {
    u32 stage = 0, parity = 0;
    for (i64 number = GROUP / CLUSTER; number < PAIRS; number += GROUPS / CLUSTER) {
        Place place = place_of(number, PAIRS_M, TILES_N, rank);
        int batch_a = (int)(place.batch * A_IS_BATCHED), batch_b = (int)(place.batch * B_IS_BATCHED);
        int m0 = (int)place.m0, n0 = (int)place.n0;
        for (int step = 0; step < steps; step++) {
            int k = step * TILE_K;
            wait_at(EMPTY(stage), parity ^ 1);
            expect_bytes(FULL(stage), BYTES);
#if A_ALONG_K
            copy_box(PLACE_A(stage), a, FULL(stage), k, m0, batch_a);
#else
            for (int i = 0; i < TILE_M / 64; i++)
                copy_box(PLACE_A(stage) + i * BOX, a, FULL(stage), m0 + i * 64, k, batch_a);
#endif
#if B_ALONG_K
            int half = (int)rank * TILE_N / CLUSTER;
            copy_box_to(3, PLACE_B(stage) + half * LINE, b, FULL(stage), k, n0 + half, batch_b);
#else
            for (int i = (int)rank * 2; i < (int)rank * 2 + 2; i++)
                copy_box_to(3, PLACE_B(stage) + i * BOX, b, FULL(stage), n0 + i * 64, k, batch_b);
#endif
            NEXT_STAGE();
        }
    }
}

typedef union {
    u32 word;
    S each[2];
} Two;

// The elements of c of a thread, for 32 columns: pairs in four blocks of eight columns, in two rows that are 8 apart.
#define COLUMNS 32
#define ROW 1
#define WORDS 2
typedef struct {
    Two at[ADDED == ROW ? 1 : 2][4];
} Added;

// The two rows of a thread: the position of their first element in c, whether the rows are in range, and the number of columns from
// there on.
typedef struct {
    GLOBAL const S *c[2];
    int is_there[2], left;
} Own;

FUNCTION Added load_added(Own own, int columns, i64 step) {
    Added v;
#pragma unroll
    for (int half = 0; half < (ADDED == ROW ? 1 : 2); half++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int column = columns + j * 8;
            v.at[half][j].word = 0;
            if (!HAS_C || !(ADDED == ROW || own.is_there[half]) || column >= own.left) continue;
            if (ADDED <= WORDS)
                v.at[half][j].word = *(GLOBAL const u32 *)(own.c[half] + column);
            else
                for (int r = 0; r < 2; r++) v.at[half][j].each[r] = own.c[half][(column + r) * step];
        }
    return v;
}

// Finishes the sums of half a tile. A thread writes words of 16 bytes; `to` is the position of the first. The elements of c for the
// next columns are prefetched; `first` has those of the first columns.
FUNCTION void finish(f32 *sums, Added first, Own own, i64 step, GLOBAL S *y, GLOBAL S *z, i64 to, i64 n, A alpha, A beta) {
    int left = own.left - LANE % 4 * 6;
    Added next = first;
#pragma unroll
    for (int group = 0; group < TILE_N / COLUMNS; group++) {
        Added added = next;
        if (group + 1 < TILE_N / COLUMNS) next = load_added(own, (group + 1) * COLUMNS, step);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 words[4], kept[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                Two out, sum, c = added.at[ADDED == ROW ? 0 : half][j];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    A v = alpha * sums[(group * 4 + j) * 4 + half * 2 + r];
                    FINISH(v, 1, c.each, r, out.each, sum.each, r);
                }
                words[j] = out.word;
                kept[j] = sum.word;
            }
            int is_there = own.is_there[half] && group * COLUMNS < left;
            i64 at = to + half * 8 * n + group * COLUMNS;
            exchange(words);
            if (is_there) store_once((GLOBAL u32x4 *)(y + at), make_uint4(words[0], words[1], words[2], words[3]));
            if (KEEPS_SUM) {
                exchange(kept);
                if (is_there) store_once((GLOBAL u32x4 *)(z + at), make_uint4(kept[0], kept[1], kept[2], kept[3]));
            }
        }
    }
}

// EXTENT_M, EXTENT_N, EXTENT_K: M, N and K
// PAIRS_M, TILES_N, PAIRS: pairs of tiles along M, tiles along N, all pairs
// A_IS_BATCHED, B_IS_BATCHED: 1 if a factor has a matrix for each result, else 0
// C_STRIDES: strides of batch, row and column of c
// ADDED: the access to c: ROW (a row whose pairs are words), WORDS (pairs are words), or single elements.
KERNEL(gemm_wgmma)(ARGUMENT(TileMap) a, ARGUMENT(TileMap) b, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, ARGUMENT(Ints) p,
                   A alpha, A beta) {
    SHARED_GIVEN(u8, given, STAGES * BYTES + STAGES * 16 + 1024);
    LocalPlace tiles = (local_place(given) + 1023) & ~1023u;
    u32 rank = rank_in_cluster();
    int steps = (int)((EXTENT_K + TILE_K - 1) / TILE_K);
    if (LANE == 0) {
        for (int i = 0; i < STAGES; i++) {
            make_barrier(FULL(i), 1);
            // One thread per reading wave, in this group and the other one, arrives.
            make_barrier(EMPTY(i), READERS * 4 * CLUSTER);
        }
        show_barriers();
    }
    SYNC_CLUSTER();
    if (LANE < 128) {
        GIVE_REGISTERS(40);
        if (LANE == 0) copy_tiles(&a, &b, p, tiles, rank, steps);
    } else {
        TAKE_REGISTERS(232);
        u32 own = (u32)LANE / 128 - 1, stage = 0, parity = 0;
        f32 sums[SUMS];
        for (i64 number = GROUP / CLUSTER; number < PAIRS; number += GROUPS / CLUSTER) {
            for (int step = 0; step < steps; step++) {
                wait_at(FULL(stage), parity);
                u64 of_a = tile_at(PLACE_A(stage) + own * BOX), of_b = tile_at(PLACE_B(stage));
                BEGIN_PRODUCTS();
#pragma unroll
                for (int k = 0; k < TILE_K / 16; k++) {
                    product(sums, further(of_a, k * AFTER_16(A_ALONG_K)), further(of_b, k * AFTER_16(B_ALONG_K)), step > 0 || k > 0);
                }
                END_GROUP_OF_PRODUCTS();
                WAIT_FOR_PRODUCTS(1);
                // Releases the stage that the previous step read.
                if (step > 0 && LANE % 32 < CLUSTER) arrive_at(EMPTY(stage == 0 ? STAGES - 1 : stage - 1), LANE % 32);
                NEXT_STAGE();
            }
            Place place = place_of(number, PAIRS_M, TILES_N, rank);
            i64 row = place.m0 + own * 64 + LANE / 32 % 4 * 16 + LANE % 32 / 4, column = place.n0 + LANE % 4 * 2;
            Own at;
            at.left = EXTENT_N - column < TILE_N ? (int)(EXTENT_N - column) : TILE_N;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                at.is_there[half] = row + half * 8 < EXTENT_M;
                at.c[half] = c + (place.batch * C_STRIDES(0) + (row + half * 8) * C_STRIDES(1) + column * C_STRIDES(2));
            }
            Added first = load_added(at, 0, C_STRIDES(2));
            WAIT_FOR_PRODUCTS(0);
            if (LANE % 32 < CLUSTER) arrive_at(EMPTY(stage == 0 ? STAGES - 1 : stage - 1), LANE % 32);
            i64 to = (place.batch * EXTENT_M + row) * EXTENT_N + column + LANE % 4 * 6;
            finish(sums, first, at, C_STRIDES(2), y, z, to, EXTENT_N, alpha, beta);
        }
    }
    // The other group may still be copying to this group's memory.
    SYNC_CLUSTER();
}

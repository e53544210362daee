// Matrix products of f16 and bf16 on matrix units, sums in f32: gemm of matmul.c, with the same arguments, for operands that are
// contiguous along one dimension in whole words of 16 bytes.
//
// A group computes TILE_M x TILE_N results; two of its waves are along M, the others along N. Tiles of TILE_K = 32 columns of a,
// and rows of b, go through registers to one of two buffers in local memory, while the waves multiply the tiles in the other. In
// local memory K is the last dimension. Operands that are contiguous along their rows are transposed on the way: a thread has the
// same 8 rows in several columns of K.
//
// THREADS: 256
// T: f16 or bf16, dtype of a, b, c and y
// ACC: f32
// TILE_M, TILE_N: 64 or 128, results of a group
// TILE_K: 32, columns of a that are in local memory at a time
// A_ALONG_K, B_ALONG_K: 0 or 1, a factor is contiguous along K; otherwise along its rows
// ACTIVATION, KEEPS_SUM, JOIN: as in finish.h
// WIDE: flag, positions have 64 bits

#include "matrix/matrix.h"
#define A_VECTOR CHUNK
#define B_VECTOR CHUNK
#include "matrix/loader.h"
#include "matrix/tile.h"

#define CHUNKS_K (TILE_K / CHUNK)
// Words of a tile that a thread copies.
#define SHARE(tile) ((tile) * CHUNKS_K / THREADS)
#define WAVE_TILE_M (TILE_M / 2)
#define WAVE_TILE_N (TILE_N / (THREADS / WAVE / 2))
#define BLOCKS_M (WAVE_TILE_M / 16)
#define BLOCKS_N (WAVE_TILE_N / 16)

typedef union {
    FourWords word;
    S each[CHUNK];
} Chunk;

// A thread's elements of a row from several columns. They are adjacent in local memory.
typedef union {
    u32x2 two;
    u32 one;
    S each[4];
} Turned;

// The first element of word `i` of this thread's share.
FUNCTION int share_row(int i, int tile, int along_k) {
    return along_k ? (LANE + i * THREADS) / CHUNKS_K : LANE % (tile / CHUNK) * CHUNK;
}

FUNCTION int share_k(int i, int tile, int along_k) {
    return along_k ? LANE % CHUNKS_K * CHUNK : LANE / (tile / CHUNK) * SHARE(tile) + i;
}

// This thread's share of the first tile of a factor. Elements beyond `rows` and `columns` are 0.
FUNCTION void fetch(Factor f, int side, int rows, int columns, int tile, int along_k, Chunk *share) {
#pragma unroll
    for (int i = 0; i < SHARE(tile); i++) {
        int row = share_row(i, tile, along_k), k = share_k(i, tile, along_k);
        FourWords zero = {0, 0, 0, 0};
        int is_inside = row < rows && k < columns && has_element(f, side, row, k);
        share[i].word = is_inside ? *(GLOBAL const FourWords *)element(f, side, row, k) : zero;
    }
}

FUNCTION void keep(LOCAL S *to, int tile, int along_k, const Chunk *share) {
    if (along_k) {
#pragma unroll
        for (int i = 0; i < SHARE(tile); i++)
            *(LOCAL FourWords *)(to + place(TILE_K, share_row(i, tile, 1), share_k(i, tile, 1))) = share[i].word;
        return;
    }
#pragma unroll
    for (int j = 0; j < CHUNK; j++) {
        Turned v;
#pragma unroll
        for (int i = 0; i < SHARE(tile); i++) v.each[i] = share[i].each[j];
        LOCAL S *at = to + place(TILE_K, share_row(0, tile, 0) + j, share_k(0, tile, 0));
        if (SHARE(tile) == 4) *(LOCAL u32x2 *)at = v.two;
        else if (SHARE(tile) == 2) *(LOCAL u32 *)at = v.one;
        else *at = v.each[0];
    }
}

KERNEL(gemm_mma)(GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, GLOBAL A *parts, Ints p,
                 A alpha, A beta LOADER_ARGUMENTS) {
    SHARED(u32x4, tiles, 2 * (TILE_M + TILE_N) * CHUNKS_K);
#define PLACE_A(place) ((LOCAL S *)tiles + (place) * ((TILE_M + TILE_N) * TILE_K))
#define PLACE_B(place) (PLACE_A(place) + TILE_M * TILE_K)

    TILE_OF_GROUP();

    Factor of_a = factor(a, p, SIDE_A, batch, m0, k0 LOADER_VALUES), of_b = factor(b, p, SIDE_B, batch, n0, k0 LOADER_VALUES);
    Chunk share_a[SHARE(TILE_M)], share_b[SHARE(TILE_N)];
    int depth = (int)(k_end - k0);
#define FETCH() \
    fetch(of_a, SIDE_A, rows, depth, TILE_M, A_ALONG_K, share_a); \
    fetch(of_b, SIDE_B, columns, depth, TILE_N, B_ALONG_K, share_b)
#define KEEP(place) \
    keep(PLACE_A(place), TILE_M, A_ALONG_K, share_a); \
    keep(PLACE_B(place), TILE_N, B_ALONG_K, share_b)

    int wave = LANE / WAVE;
    int own_m = wave % 2 * WAVE_TILE_M, own_n = wave / 2 * WAVE_TILE_N;
    Sums sums[BLOCKS_M][BLOCKS_N];
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++) sums[i][j] = (Sums)(0);

    FETCH();
    KEEP(0);
    BARRIER();
    for (int place = 0; depth > 0; depth -= TILE_K, place ^= 1) {
        int has_next = depth > TILE_K;
        if (has_next) {
            advance(&of_a, SIDE_A, TILE_K);
            advance(&of_b, SIDE_B, TILE_K);
            depth -= TILE_K;
            FETCH();
            depth += TILE_K;
        }
#pragma unroll
        for (int k = 0; k < TILE_K; k += DEPTH) {
            Operand va[BLOCKS_M];
#pragma unroll
            for (int i = 0; i < BLOCKS_M; i++) va[i] = load_a(PLACE_A(place), TILE_K, own_m + i * 16, k);
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++) {
                Operand vb = load_b(PLACE_B(place), TILE_K, own_n + j * 16, k);
#pragma unroll
                for (int i = 0; i < BLOCKS_M; i++) multiply(sums[i][j], va[i], vb);
            }
        }
#pragma unroll
        for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++) MULTIPLIED(sums[i][j]);
        if (has_next) {
            KEEP(place ^ 1);
            BARRIER();
        }
    }

    RESULTS_OF_TILE();
    typedef struct {
        u32x2 words[RESULTS / 4];
    } Stored;
    int has_words = n % RESULTS == 0 && Y_HAS_WORDS;
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++) {
        int row = own_m + i * 16 + RESULT_ROW;
        if (row >= rows) continue;
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++) {
            int column = own_n + j * 16 + RESULT_COLUMN;
#define SUM_OF(r) sums[i][j][r]
            PUT_RESULTS(Stored, RESULTS, row, column, SUM_OF);
        }
    }
#ifdef HAS_ABSENT
#define ROW_OF_SUM(i, r) (own_m + (i) * 16 + RESULT_ROW)
#define COLUMN_OF_SUM(j, r) (own_n + (j) * 16 + RESULT_COLUMN + (r))
    AGAIN_IF_NAN(RESULTS, ROW_OF_SUM, COLUMN_OF_SUM);
#endif
}

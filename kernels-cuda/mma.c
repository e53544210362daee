// Matrix products of f16 and bf16 on tensor cores, sums in f32: gemm of matmul.c, with the same arguments, for operands that
// are contiguous along one dimension in whole words of 16 bytes. Compute capability 8.0 and later.
//
// A group of four waves makes TILE_M x TILE_N results, a wave a quarter of them. Tiles of TILE_K = 32 columns of a, and rows of
// b, are copied to local memory while earlier ones are multiplied: STAGES of them are there or on their way. In local memory a
// tile lies as in memory, [tile, TILE_K] or [TILE_K, tile], in words of 8 elements, whose places within a row depend on the
// row so that eight rows' words are in different banks. A wave reads the operands of the next instructions while it multiplies.

#include "finish.h"

#define STAGES 3
// 8 elements.
#define CHUNK 8
#define CHUNKS_K (TILE_K / CHUNK)
#define WAVE_TILE_M (TILE_M / 2)
#define WAVE_TILE_N (TILE_N / 2)
// Blocks of 16 x 16 of a wave, and of 8 columns: what one instruction takes of a and of b.
#define BLOCKS_M (WAVE_TILE_M / 16)
#define BLOCKS_N (WAVE_TILE_N / 8)
// Rows of tiles that run together, so that they find each other's operands in the cache.
#define BAND 8

// The place of a word of a tile, in bytes.
FUNCTION u32 place(int row, int k, int tile, int along_k) {
    return along_k ? (u32)(row * CHUNKS_K + (k / CHUNK ^ (row >> 1 & 3))) * 16
                   : (u32)(k * (tile / CHUNK) + (row / CHUNK ^ (k & 7))) * 16;
}

// A thread's share of the copies of tiles: words at equal distances, whose places in local memory are at equal distances too.
typedef struct {
    GLOBAL const S *from;
    i64 step;
    u32 to;
    int row, k;
    u32 rows_inside;
} Share;

// Rows, or columns of K, from a word of a share to the next; and how many words there are.
#define LINES(tile, along_k) (THREADS / ((along_k) ? CHUNKS_K : (tile) / CHUNK))
#define WORDS_OF(tile) ((tile) * CHUNKS_K / THREADS)

FUNCTION Share share(GLOBAL const S *x, idx row_stride, idx k_stride, int rows, int tile, int along_k) {
    Share s;
    s.row = along_k ? LANE / CHUNKS_K : LANE % (tile / CHUNK) * CHUNK;
    s.k = along_k ? LANE % CHUNKS_K * CHUNK : LANE / (tile / CHUNK);
    s.from = x + (s.row * row_stride + s.k * k_stride);
    s.step = LINES(tile, along_k) * (i64)(along_k ? row_stride : k_stride);
    s.to = place(s.row, s.k, tile, along_k);
    s.rows_inside = 0;
#pragma unroll
    for (int i = 0; i < WORDS_OF(tile); i++)
        s.rows_inside |= (u32)(s.row + (along_k ? i * LINES(tile, along_k) : 0) < rows) << i;
    return s;
}

// Copies the share of the tile that lies `k0` beyond the first. Beyond the rows and `columns` it is 0.
FUNCTION void copy_tile(Share s, GLOBAL const S *x, i64 k0, int columns, int tile, int along_k, LocalPlace to) {
#pragma unroll
    for (int i = 0; i < WORDS_OF(tile); i++) {
        int is_inside = (s.rows_inside >> i & 1) && s.k + (along_k ? 0 : i * LINES(tile, along_k)) < columns;
        GLOBAL const S *from = is_inside ? s.from + (k0 + i * s.step) : x;
        copy_async(to + s.to + i * LINES(tile, along_k) * (along_k ? CHUNKS_K : tile / CHUNK) * 16, from, is_inside ? 16 : 0);
    }
}

KERNEL(gemm_mma)(GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL S *y, GLOBAL S *z, GLOBAL A *parts, Ints p,
                 A alpha, A beta) {
    i64 m = p.v[0], n = p.v[1], batches = p.v[3], tiles_m = p.v[4], tiles_n = p.v[5], n_parts = p.v[6];
    idx a_row = A_ALONG_K ? (idx)p.v[9] : 1, a_k = A_ALONG_K ? 1 : (idx)p.v[10];
    idx b_row = B_ALONG_K ? (idx)p.v[12] : 1, b_k = B_ALONG_K ? 1 : (idx)p.v[13];
    SHARED(u32x4, tiles, STAGES * (TILE_M + TILE_N) * CHUNKS_K);
    LocalPlace first = local_place(tiles);
#define PLACE_A(stage) (first + (u32)(stage) * ((TILE_M + TILE_N) * CHUNKS_K * 16))
#define PLACE_B(stage) (PLACE_A(stage) + TILE_M * CHUNKS_K * 16)

    // Which tile, of which matrix, and which part of K.
    i64 n_tiles = tiles_m * tiles_n;
    i64 tile = GROUP % n_tiles, part = GROUP / n_tiles % n_parts, batch = p.v[18] + GROUP / n_tiles / n_parts;
    i64 top = tile / (BAND * tiles_n) * BAND, height = tiles_m - top < BAND ? tiles_m - top : BAND;
    i64 within = tile - top * tiles_n;
    i64 m0 = (top + within % height) * TILE_M, n0 = within / height * TILE_N;
    i64 k0 = part * p.v[7], k_end = p.v[2] - k0 < p.v[7] ? p.v[2] : k0 + p.v[7];
    int rows = (int)(m - m0 < TILE_M ? m - m0 : TILE_M), columns = (int)(n - n0 < TILE_N ? n - n0 : TILE_N);

    GLOBAL const S *at_a = a + (batch * p.v[8] + m0 * p.v[9] + k0 * p.v[10]);
    GLOBAL const S *at_b = b + (batch * p.v[11] + n0 * p.v[12] + k0 * p.v[13]);
    int steps = (int)((k_end - k0 + TILE_K - 1) / TILE_K), depth = (int)(k_end - k0);
    Share share_a = share(at_a, a_row, a_k, rows, TILE_M, A_ALONG_K);
    Share share_b = share(at_b, b_row, b_k, columns, TILE_N, B_ALONG_K);
    // What is copied next, and where to; where the multiplied tile is.
    u32 filling = 0, used = 0;
#define NEXT(stage) ((stage) + 1 == STAGES ? 0 : (stage) + 1)
#define COPY(step) \
    if ((step) < steps) { \
        copy_tile(share_a, at_a, (step) * TILE_K * (i64)a_k, depth - (step) * TILE_K, TILE_M, A_ALONG_K, PLACE_A(filling)); \
        copy_tile(share_b, at_b, (step) * TILE_K * (i64)b_k, depth - (step) * TILE_K, TILE_N, B_ALONG_K, PLACE_B(filling)); \
    } \
    filling = NEXT(filling); \
    end_group_of_copies()
#define WAIT() \
    wait_for_copies(STAGES - 2); \
    BARRIER()
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) {
        COPY(step);
    }

    int wave = LANE / 32, lane = LANE % 32, block = lane / 8, line = lane % 8;
    int own_m = wave % 2 * WAVE_TILE_M, own_n = wave / 2 * WAVE_TILE_N;
    f32 sums[BLOCKS_M][BLOCKS_N][4];
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) sums[i][j][r] = 0;

    // Operands of 16 columns, and of the next 16. Blocks are in the order of the instruction's: of a, rows first; of b, K first.
    u32 va[2][BLOCKS_M][4], vb[2][BLOCKS_N / 2][4];
#define READ_OPERANDS(buffer, k) \
    _Pragma("unroll") for (int i = 0; i < BLOCKS_M; i++) { \
        int row = own_m + i * 16 + block % 2 * 8, column = (k) + block / 2 * 8; \
        load_blocks(PLACE_A(used) + (A_ALONG_K ? place(row + line, column, TILE_M, 1) : place(row, column + line, TILE_M, 0)), \
                    !A_ALONG_K, va[buffer][i]); \
    } \
    _Pragma("unroll") for (int j = 0; j < BLOCKS_N / 2; j++) { \
        int row = own_n + j * 16 + block / 2 * 8, column = (k) + block % 2 * 8; \
        load_blocks(PLACE_B(used) + (B_ALONG_K ? place(row + line, column, TILE_N, 1) : place(row, column + line, TILE_N, 0)), \
                    !B_ALONG_K, vb[buffer][j]); \
    }
    WAIT();
    READ_OPERANDS(0, 0)
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int k = 0; k < TILE_K / 16; k++) {
            if (k == TILE_K / 16 - 1) {
                // The next tile is there for every thread, and none reads this one any more.
                WAIT();
                used = NEXT(used);
            }
            READ_OPERANDS((k + 1) % 2, (k + 1) % (TILE_K / 16) * 16)
            if (k == 0) {
                COPY(step + STAGES - 1);
            }
#pragma unroll
            for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
                for (int j = 0; j < BLOCKS_N; j++) CAT(mma_, T)(sums[i][j], va[k % 2][i], vb[k % 2][j / 2] + j % 2 * 2);
        }
    }

    // A thread has pairs of neighbours in rows that are 8 apart.
    GLOBAL A *to_part = parts + ((part * batches + batch) * m + m0) * n + n0;
    GLOBAL S *to = y + (batch * m + m0) * n + n0, *to_z = z + (batch * m + m0) * n + n0;
    GLOBAL const S *from = c + (batch * p.v[14] + m0 * p.v[15] + n0 * p.v[16]);
    int has_words = n % 2 == 0 && p.v[17];
#pragma unroll
    for (int i = 0; i < BLOCKS_M; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = own_m + i * 16 + half * 8 + lane / 4;
            if (row >= rows) continue;
#pragma unroll
            for (int j = 0; j < BLOCKS_N; j++) {
                int column = own_n + j * 8 + lane % 4 * 2;
                union {
                    u32 word;
                    S each[2];
                } out, sum;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    A v = sums[i][j][half * 2 + r];
                    if (n_parts > 1) {
                        if (column + r < columns) to_part[row * n + column + r] = v;
                        continue;
                    }
                    v *= alpha;
                    FINISH(v, column + r < columns, from, row * p.v[15] + (column + r) * p.v[16], out.each, sum.each, r);
                }
                if (n_parts > 1) continue;
                if (has_words && column < columns) {
                    *(GLOBAL u32 *)(to + (row * n + column)) = out.word;
                    if (KEEPS_SUM) *(GLOBAL u32 *)(to_z + (row * n + column)) = sum.word;
                    continue;
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    if (column + r >= columns) continue;
                    to[row * n + column + r] = out.each[r];
                    if (KEEPS_SUM) to_z[row * n + column + r] = sum.each[r];
                }
            }
        }
}

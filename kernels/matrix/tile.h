// A tile of a product of matrices on matrix units: which one a group computes, and what becomes of its results. The arguments are those of
// gemm, and the file after loader.h.
//
// TILE_M, TILE_N: rows and columns of the tile
// ACTIVATION, KEEPS_SUM, JOIN: as in finish.h

// Rows of tiles that run together, so that they share operands in the cache.
#define BAND 8

// The tile, the matrix, and the part of K.
#define TILE_OF_GROUP() \
    i64 m = EXTENT_M, n = EXTENT_N, batches = BATCHES, tiles_m = TILES_M, tiles_n = TILES_N, n_parts = N_PARTS; \
    i64 n_tiles = tiles_m * tiles_n; \
    i64 tile = GROUP % n_tiles, part = GROUP / n_tiles % n_parts, batch = FIRST_BATCH + GROUP / n_tiles / n_parts; \
    i64 top = tile / (BAND * tiles_n) * BAND, height = tiles_m - top < BAND ? tiles_m - top : BAND; \
    i64 within = tile - top * tiles_n; \
    i64 m0 = (top + within % height) * TILE_M, n0 = within / height * TILE_N; \
    i64 k0 = part * PART_K, k_end = EXTENT_K - k0 < PART_K ? EXTENT_K : k0 + PART_K; \
    int rows = (int)(m - m0 < TILE_M ? m - m0 : TILE_M), columns = (int)(n - n0 < TILE_N ? n - n0 : TILE_N)

// Where the tile's parts of sums, its results, and its elements of c are.
#define RESULTS_OF_TILE() \
    GLOBAL A *to_part = parts + ((part * batches + batch) * m + m0) * n + n0; \
    GLOBAL S *to = y + (batch * m + m0) * n + n0, *to_z = z + (batch * m + m0) * n + n0; \
    GLOBAL const S *from = c + (batch * C_STRIDES(0) + m0 * C_STRIDES(1) + n0 * C_STRIDES(2))

// Writes `count` adjacent results of a row, which are a Word. SUM(r): the sum of each. `has_words`: rows of y are aligned to words.
#define PUT_RESULTS(Word, count, row, column, SUM) \
    do { \
        union { \
            Word word; \
            S each[count]; \
        } out, sum; \
        _Pragma("unroll") for (int r = 0; r < (count); r++) { \
            A v = SUM(r); \
            if (n_parts > 1) { \
                if (column + r < columns) to_part[row * n + column + r] = v; \
                continue; \
            } \
            v *= alpha; \
            FINISH(v, column + r < columns, from, row * C_STRIDES(1) + (column + r) * C_STRIDES(2), out.each, sum.each, r); \
        } \
        if (n_parts > 1) break; \
        if (has_words && column < columns) { \
            *(GLOBAL Word *)(to + (row * n + column)) = out.word; \
            if (KEEPS_SUM) *(GLOBAL Word *)(to_z + (row * n + column)) = sum.word; \
            break; \
        } \
        _Pragma("unroll") for (int r = 0; r < (count); r++) { \
            if (column + r >= columns) continue; \
            to[row * n + column + r] = out.each[r]; \
            if (KEEPS_SUM) to_z[row * n + column + r] = sum.each[r]; \
        } \
    } while (0)

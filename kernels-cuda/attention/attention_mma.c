// Attention on matrix units: kernels of attention.c for f16, bf16 and TF32, with the same arguments, for rows of whole words of 16 bytes
// and a positive scale. Products are summed in f32; weights, and gradients of scores, are rounded to T, or to TF32, before the next
// product. Compute capability 8.0 and later.
//
// A group has four waves. A wave computes BLOCKS x 16 rows of scores with OTHERS_TILE columns, keeps them in registers, and multiplies
// them with as many rows of the next factor. Tiles in local memory have rows of DIM elements. The words of a row are permuted by its
// number, so that the words of eight rows, and the words of eight columns, are in different banks.
//
// THREADS: 128
// ACC: f32
// DIM: multiple of 64 up to 256, D rounded up
// STEPS: D / 16, rounded up; even with TF32
// BLOCKS: 1 or 2, blocks of 16 rows of a wave; 1 for all kernels but the first
// OTHERS_TILE: 16, 32 or 64, rows of the factors that change in local memory
// TF32: flag, T is f32, and factors of products are rounded to TF32: those in local memory by the thread that copied them
// OUTPUT, QUERIES, KEYS: flag, the kernel: attention_mma, attention_queries_mma, attention_keys_mma
// T, MASK, ADDS_MASK, DROPOUT, BASE, PACKED, LENGTHS, integers: as in attention.h

#define TILE_K 32
#ifdef TF32
#define CHUNK 4
#endif
#include "matrix/matrix.h"

// Rows of the factor that stays in local memory.
#define TILE (64 * BLOCKS)
#include "attention/attention.h"
#include "attention/attention_rows.h"

// Blocks of eight columns of a wave's scores.
#define COLUMNS (OTHERS_TILE / 8)
// Bytes of a tile.
#define BYTES(rows) ((rows) * DIM * (int)sizeof(S))
// Words of a row in memory.
#define WORDS (STEPS * 16 / CHUNK)
// Elements along K of an operand, and operands of a row.
#define DEPTH (2 * CHUNK)
#define OPERANDS (STEPS * 16 / DEPTH)
// The first row of a wave's scores.
#define OWN_ROW (LANE / 32 * 16 * BLOCKS)
#define LINE (LANE % 8)
#define BLOCK (LANE % 32 / 8)

// The position of a word of a tile.
FUNCTION u32 word_at_row(int row, int column) { return (u32)(row * (DIM / CHUNK) + (column / CHUNK ^ (row & 7))) * 16; }

// The place of a thread's word i of the first n rows; false if it has none.
FUNCTION int has_word(int i, int n, int *row, int *column) {
    int e = LANE + i * THREADS;
    *row = e / WORDS;
    *column = e % WORDS * CHUNK;
    return n * WORDS % THREADS == 0 || *row < n;
}
#define EACH_WORD(i, n) EACH(i, ((n) * WORDS + THREADS - 1) / THREADS)

// Starts the copies of the first n rows. Rows and columns that are not in memory become 0.
FUNCTION void copy_rows(LocalPlace to, Rows rows, int n, int width) {
    EACH_WORD(i, n) {
        int row, column;
        if (!has_word(i, n, &row, &column)) continue;
        int is_inside = row < rows.count && column < width;
        copy_async(to + word_at_row(row, column), is_inside ? rows.x + (row * rows.step + column) : rows.x, is_inside ? 16 : 0);
    }
}

// Rounds the words that this thread has copied.
FUNCTION void round_rows(LocalPlace tile, int n) {
#ifdef TF32
    EACH_WORD(i, n) {
        int row, column;
        if (!has_word(i, n, &row, &column)) continue;
        LocalPlace at = tile + word_at_row(row, column);
        u32 word[4];
        load_four(at, word);
        EACH(r, 4) word[r] = f32_to_tf32(as_f32(word[r]));
        store_four(at, word);
    }
#endif
}

// The operand of 16 rows and DEPTH columns.
FUNCTION void load_rows(LocalPlace tile, int row, int column, u32 *out) {
    load_blocks(tile + word_at_row(row + BLOCK % 2 * 8 + LINE, column + BLOCK / 2 * CHUNK), 0, out);
}

// The operands of 16 rows, as columns of b, and DEPTH columns, as K.
FUNCTION void load_as_columns(LocalPlace tile, int row, int column, u32 *out) {
    load_blocks(tile + word_at_row(row + BLOCK / 2 * 8 + LINE, column + BLOCK % 2 * CHUNK), 0, out);
}

// s = the products of this wave's rows of a and OTHERS_TILE rows of b.
FUNCTION void multiply_rows(f32 s[BLOCKS][COLUMNS][SUMS], LocalPlace a, LocalPlace b) {
    EACH(i, BLOCKS) EACH(j, COLUMNS) EACH(r, SUMS) s[i][j][r] = 0;
    EACH(d, OPERANDS) {
        u32 va[BLOCKS][4];
        EACH(i, BLOCKS) load_rows(a, OWN_ROW + i * 16, d * DEPTH, va[i]);
        EACH(j, COLUMNS / 2) {
            u32 vb[4];
            load_as_columns(b, j * 16, d * DEPTH, vb);
            EACH(i, BLOCKS) {
                multiply(s[i][2 * j], va[i], vb);
                multiply(s[i][2 * j + 1], va[i], vb + 2);
            }
        }
    }
}

#ifdef TF32
// sums += s, rounded, times OTHERS_TILE rows of b. The instructions' numbers differ from memory's. Along K, a thread has two adjacent scores,
// which are its two numbers of the first factor. Of four adjacent columns of b, each belongs to another instruction.
FUNCTION void add_product(f32 sums[BLOCKS][2 * STEPS][SUMS], f32 s[BLOCKS][COLUMNS][SUMS], LocalPlace b) {
    EACH(k, COLUMNS) {
        u32 va[BLOCKS][4];
        EACH(i, BLOCKS) EACH(r, 4) va[i][r] = f32_to_tf32(s[i][k][r % 2 * 2 + r / 2]);
        EACH(n, STEPS / 2) {
            u32 rows[2][4];
            EACH(r, 2) load_four(b + word_at_row(k * 8 + RESULT_COLUMN + r, n * 32 + LANE % 32 / 4 * 4), rows[r]);
            EACH(j, 4) {
                u32 vb[2] = {rows[0][j], rows[1][j]};
                EACH(i, BLOCKS) multiply(sums[i][4 * n + j], va[i], vb);
            }
        }
    }
}

FUNCTION void put_sums(GLOBAL S *to, f32 sums[BLOCKS][2 * STEPS][SUMS], int rows, i64 step, int width, f32 factor) {
    EACH(i, BLOCKS) EACH(pair, 2) {
        int row = OWN_ROW + i * 16 + RESULT_ROW(pair);
        if (row >= rows) continue;
        EACH(n, STEPS / 2) EACH(r, 2) {
            int column = n * 32 + (RESULT_COLUMN + r) * 4;
            union {
                u32x4 all;
                f32 each[4];
            } word;
            EACH(j, 4) word.each[j] = sums[i][4 * n + j][pair * 2 + r] * factor;
            if (column < width) *(GLOBAL u32x4 *)(to + (row * step + column)) = word.all;
        }
    }
}
#else
// The operands of 16 rows, as K, and 16 columns.
FUNCTION void load_columns(LocalPlace tile, int row, int column, u32 *out) {
    load_blocks(tile + word_at_row(row + BLOCK % 2 * 8 + LINE, column + BLOCK / 2 * 8), 1, out);
}

FUNCTION u32 pack(f32 low, f32 high) {
    union {
        u32 word;
        S each[2];
    } pair;
    STORE(T, pair.each, 0, low);
    STORE(T, pair.each, 1, high);
    return pair.word;
}

// sums += s, rounded, times OTHERS_TILE rows of b.
FUNCTION void add_product(f32 sums[BLOCKS][2 * STEPS][SUMS], f32 s[BLOCKS][COLUMNS][SUMS], LocalPlace b) {
    EACH(k, COLUMNS / 2) {
        u32 va[BLOCKS][4];
        EACH(i, BLOCKS) EACH(r, 4) va[i][r] = pack(s[i][2 * k + r / 2][r % 2 * 2], s[i][2 * k + r / 2][r % 2 * 2 + 1]);
        EACH(n, STEPS) {
            u32 vb[4];
            load_columns(b, k * 16, n * 16, vb);
            EACH(i, BLOCKS) {
                multiply(sums[i][2 * n], va[i], vb);
                multiply(sums[i][2 * n + 1], va[i], vb + 2);
            }
        }
    }
}

FUNCTION void put_sums(GLOBAL S *to, f32 sums[BLOCKS][2 * STEPS][SUMS], int rows, i64 step, int width, f32 factor) {
    EACH(i, BLOCKS) EACH(pair, 2) {
        int row = OWN_ROW + i * 16 + RESULT_ROW(pair);
        if (row >= rows) continue;
        EACH(n, 2 * STEPS) {
            int column = n * 8 + RESULT_COLUMN;
            f32 *v = sums[i][n] + pair * 2;
            if (column < width) *(GLOBAL u32 *)(to + (row * step + column)) = pack(v[0] * factor, v[1] * factor);
        }
    }
}
#endif

#ifdef OUTPUT
KERNEL(attention_mma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL S *o, GLOBAL A *lse, Ints p,
                      A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS STATUS_ARGUMENTS) {
    CHECK_ENDS();
    SHARED_GIVEN(u32x4, tiles, BYTES(TILE + 2 * OTHERS_TILE) / 16);
    LocalPlace at_q = local_place(tiles), at_k = at_q + BYTES(TILE), at_v = at_k + BYTES(OTHERS_TILE);
    TILE_OF_QUERIES(TILE);
    f32 slope = SLOPE;

    f32 sums[BLOCKS][2 * STEPS][SUMS], largest[BLOCKS][2], total[BLOCKS][2];
    EACH(i, BLOCKS) {
        EACH(n, 2 * STEPS) EACH(r, SUMS) sums[i][n][r] = 0;
        EACH(pair, 2) {
            largest[i][pair] = LOWEST;
            total[i][pair] = 0;
        }
    }
    if (key < end) {
        copy_rows(at_q, of_q, TILE, width);
        copy_rows(at_k, ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key, last_key), OTHERS_TILE, width);
        end_group_of_copies();
    }
    int is_first = 1;
    for (; key < end; key += OTHERS_TILE) {
        // The keys are there, and all threads have finished with the values before.
        wait_for_copies(0);
        if (is_first) round_rows(at_q, TILE);
        is_first = 0;
        round_rows(at_k, OTHERS_TILE);
        BARRIER();
        copy_rows(at_v, ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + key, last_key), OTHERS_TILE, width);
        end_group_of_copies();
        f32 s[BLOCKS][COLUMNS][SUMS];
        multiply_rows(s, at_q, at_k);
        // The values are there, and all threads have finished with the keys.
        wait_for_copies(0);
        round_rows(at_v, OTHERS_TILE);
        BARRIER();
        if (key + OTHERS_TILE < end) {
            copy_rows(at_k, ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key + OTHERS_TILE, last_key), OTHERS_TILE, width);
            end_group_of_copies();
        }
        if (!is_whole(span, query, TILE, key, OTHERS_TILE)) {
            EACH(i, BLOCKS) EACH(j, COLUMNS) EACH(r, SUMS) {
                int own_query = query + OWN_ROW + i * 16 + RESULT_ROW(r / 2), own_key = key + j * 8 + RESULT_COLUMN + r % 2;
                s[i][j][r] *= MASK_SCALE;
                s[i][j][r] = masked(s[i][j][r], p, span, batch, head, own_query, own_key MASK_VALUES);
            }
        }
        EACH(i, BLOCKS) EACH(pair, 2) {
            f32 next = largest[i][pair];
            EACH(j, COLUMNS) EACH(r, 2) next = LARGER(next, s[i][j][pair * 2 + r]);
            for (int by = 1; by < 4; by *= 2) {
                f32 other = from_lane(next, by);
                next = LARGER(next, other);
            }
            f32 shift = shift_of(next, slope), factor = raise_largest(&largest[i][pair], next, slope, shift);
            total[i][pair] *= factor;
            EACH(n, 2 * STEPS) EACH(r, 2) sums[i][n][pair * 2 + r] *= factor;
            EACH(j, COLUMNS) EACH(r, 2) {
                f32 *weight = s[i][j] + (pair * 2 + r);
                *weight = exp2_near_(fma_(*weight, slope, -shift));
                total[i][pair] += *weight;
#ifdef DROPOUT
                int own_query = query + OWN_ROW + i * 16 + RESULT_ROW(pair), own_key = key + j * 8 + RESULT_COLUMN + r;
                *weight *= is_kept(ELEMENT(own_query, own_key) DROPOUT_VALUES);
#endif
            }
        }
        add_product(sums, s, at_v);
    }
    i64 row = (batch * heads + head) * N_QUERIES + first;
    EACH(i, BLOCKS) EACH(pair, 2) {
        for (int by = 1; by < 4; by *= 2) {
            f32 other = from_lane(total[i][pair], by);
            total[i][pair] += other;
        }
        int is_empty = total[i][pair] == 0, own = OWN_ROW + i * 16 + RESULT_ROW(pair);
        f32 share = is_empty ? 1.0f : FACTOR / total[i][pair];
        EACH(n, 2 * STEPS) EACH(r, 2) sums[i][n][pair * 2 + r] *= share;
        if (LANE % 4 == 0 && own < of_q.count)
            lse[row + own] = log_of_sum(largest[i][pair], total[i][pair], slope);
    }
    put_sums(o + RESULT_AT(batch, head, first), sums, of_q.count, RESULT_STRIDES(2), width, 1);
}
#endif

#ifdef QUERIES
KERNEL(attention_queries_mma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL const S *dy, GLOBAL const A *lse,
                              GLOBAL const A *delta, GLOBAL S *dq, Ints p, A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS) {
    SHARED_GIVEN(u32x4, tiles, BYTES(2 * TILE + 2 * OTHERS_TILE) / 16);
    LocalPlace at_q = local_place(tiles), at_dy = at_q + BYTES(TILE);
    LocalPlace at_k = at_dy + BYTES(TILE), at_v = at_k + BYTES(OTHERS_TILE);
    TILE_OF_QUERIES(TILE);
    i64 row = (batch * heads + head) * N_QUERIES + first;
    f32 slope = SLOPE;

    f32 sums[1][2 * STEPS][SUMS], own_lse[2], own_delta[2];
    EACH(n, 2 * STEPS) EACH(r, SUMS) sums[0][n][r] = 0;
    EACH(pair, 2) {
        int own = OWN_ROW + RESULT_ROW(pair), is_inside = own < of_q.count;
        own_lse[pair] = is_inside ? lse[row + own] * LOG2E : LOWEST;
        own_delta[pair] = is_inside ? delta[row + own] : 0.0f;
    }
    if (key < end) {
        copy_rows(at_q, of_q, TILE, width);
        copy_rows(at_dy, ROWS_OF(dy, DY_STRIDES, batch, head, first, span.query + span.queries), TILE, width);
        copy_rows(at_k, ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key, last_key), OTHERS_TILE, width);
        copy_rows(at_v, ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + key, last_key), OTHERS_TILE, width);
        end_group_of_copies();
    }
    int is_first = 1;
    for (; key < end; key += OTHERS_TILE) {
        wait_for_copies(0);
        if (is_first) {
            round_rows(at_q, TILE);
            round_rows(at_dy, TILE);
        }
        is_first = 0;
        round_rows(at_k, OTHERS_TILE);
        round_rows(at_v, OTHERS_TILE);
        BARRIER();
        f32 s[1][COLUMNS][SUMS], dp[1][COLUMNS][SUMS];
        multiply_rows(s, at_q, at_k);
        multiply_rows(dp, at_dy, at_v);
        // All threads have finished with the values.
        BARRIER();
        int has_next = key + OTHERS_TILE < end;
        if (has_next) copy_rows(at_v, ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + key + OTHERS_TILE, last_key), OTHERS_TILE, width);
        int is_masked = !is_whole(span, query, TILE, key, OTHERS_TILE);
        EACH(j, COLUMNS) EACH(r, SUMS) {
            int own_query = query + OWN_ROW + RESULT_ROW(r / 2), own_key = key + j * 8 + RESULT_COLUMN + r % 2;
            f32 score = s[0][j][r], dw = dp[0][j][r];
            score *= MASK_SCALE;
            if (is_masked) score = masked(score, p, span, batch, head, own_query, own_key MASK_VALUES);
#ifdef DROPOUT
            dw *= kept * is_kept(ELEMENT(own_query, own_key) DROPOUT_VALUES);
#endif
            s[0][j][r] = weight(score, slope, own_lse[r / 2]) * (dw - own_delta[r / 2]);
        }
        add_product(sums, s, at_k);
        // All threads have finished with the keys.
        BARRIER();
        if (has_next) {
            copy_rows(at_k, ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key + OTHERS_TILE, last_key), OTHERS_TILE, width);
            end_group_of_copies();
        }
    }
    put_sums(dq + RESULT_AT(batch, head, first), sums, of_q.count, RESULT_STRIDES(2), width, scale);
}
#endif

#ifdef KEYS
KERNEL(attention_keys_mma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL const S *dy, GLOBAL const A *lse,
                           GLOBAL const A *delta, GLOBAL S *dk, GLOBAL S *dv, Ints p, A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS) {
    SHARED_GIVEN(u32x4, tiles, BYTES(2 * TILE + 2 * OTHERS_TILE) / 16);
    LocalPlace at_k = local_place(tiles), at_v = at_k + BYTES(TILE);
    LocalPlace at_q = at_v + BYTES(TILE), at_dy = at_q + BYTES(OTHERS_TILE);
    TILE_OF_KEYS();
    f32 slope = SLOPE;

    f32 sums_k[1][2 * STEPS][SUMS], sums_v[1][2 * STEPS][SUMS];
    EACH(n, 2 * STEPS) EACH(r, SUMS) sums_k[0][n][r] = sums_v[0][n][r] = 0;
    if (start < end) {
        copy_rows(at_k, of_k, TILE, width);
        copy_rows(at_v, ROWS_OF(v, VALUE_STRIDES, batch, key_head, first, last_key), TILE, width);
        end_group_of_copies();
    }
    int is_first = 1;
    for (i64 head = key_head * SHARED_BY; head < (key_head + 1) * SHARED_BY; head++) {
        i64 row = (batch * HEADS + head) * N_QUERIES + span.query;
        for (int query = start; query < end; query += OTHERS_TILE) {
            // All threads have finished with the queries before.
            BARRIER();
            copy_rows(at_q, ROWS_OF(q, QUERY_STRIDES, batch, head, span.query + query, span.query + span.queries), OTHERS_TILE, width);
            copy_rows(at_dy, ROWS_OF(dy, DY_STRIDES, batch, head, span.query + query, span.query + span.queries), OTHERS_TILE, width);
            end_group_of_copies();
            wait_for_copies(0);
            if (is_first) {
                round_rows(at_k, TILE);
                round_rows(at_v, TILE);
            }
            is_first = 0;
            round_rows(at_q, OTHERS_TILE);
            round_rows(at_dy, OTHERS_TILE);
            BARRIER();
            // Their rows are keys, their columns queries.
            f32 s[1][COLUMNS][SUMS], dp[1][COLUMNS][SUMS];
            multiply_rows(s, at_k, at_q);
            multiply_rows(dp, at_v, at_dy);
            int is_masked = !is_whole(span, query, OTHERS_TILE, key, TILE);
            EACH(j, COLUMNS) EACH(r, SUMS) {
                int own_query = query + j * 8 + RESULT_COLUMN + r % 2, own_key = key + OWN_ROW + RESULT_ROW(r / 2);
                int is_inside = own_query < span.queries;
                f32 own_lse = is_inside ? lse[row + own_query] * LOG2E : LOWEST;
                f32 own_delta = is_inside ? delta[row + own_query] : 0.0f, score = s[0][j][r], dw = dp[0][j][r];
                score *= MASK_SCALE;
                if (is_masked) score = masked(score, p, span, batch, head, own_query, own_key MASK_VALUES);
                f32 share = weight(score, slope, own_lse);
#ifdef DROPOUT
                f32 is_one = is_kept(ELEMENT(own_query, own_key) DROPOUT_VALUES);
                s[0][j][r] = share * is_one;
                dw *= kept * is_one;
#else
                s[0][j][r] = share;
#endif
                dp[0][j][r] = share * (dw - own_delta);
            }
            add_product(sums_v, s, at_dy);
            add_product(sums_k, dp, at_q);
        }
    }
    wait_for_copies(0);
    i64 row = RESULT_AT(batch, key_head, first);
    put_sums(dk + row, sums_k, written, RESULT_STRIDES(2), width, scale);
    put_sums(dv + row, sums_v, written, RESULT_STRIDES(2), width, FACTOR);
}
#endif

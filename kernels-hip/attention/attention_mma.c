// Attention on matrix units: kernels of attention.c for f16 and bf16, with the same arguments, for rows of whole words of 16 bytes and
// a positive scale. Products are summed in f32; weights, and gradients of scores, are rounded to T before the next product.
//
// A group has THREADS / 2 rows of scores. A wave computes BLOCKS x 16 of them with OTHERS_TILE columns, keeps them in registers, and
// multiplies them with OTHERS_TILE rows of the next factor. Rows that stay are operands in registers. Tiles of those that change are in
// local memory: [OTHERS_TILE, DIM] for products along D, and turned, [DIM, OTHERS_TILE], for sums over their rows.
//
// A lane has eight adjacent scores of every DEPTH, of one row. Rounded, they are its elements along K of the next product.
//
// THREADS: 128 or 256, twice the rows of scores of a group
// ACC: f32
// DIM: multiple of 64 up to 256, D rounded up
// STEPS: D / 16, rounded up
// OTHERS_TILE: 32 or 64, rows that change at a time
// OUTPUT, QUERIES, KEYS: flag, the kernel: attention_mma, attention_queries_mma, attention_keys_mma
// T, MASK, ADDS_MASK, DROPOUT, BASE, PACKED, LENGTHS, integers: as in attention.h

#include "matrix/matrix.h"

#define TILE (THREADS / 2)
#include "attention/attention.h"
#include "attention/attention_rows.h"

#define WAVE_LANE (LANE % WAVE)
// Blocks of 16 rows of a wave, and the first row of its scores.
#define BLOCKS (WAVE / 32)
#define OWN_ROW (LANE / WAVE * 16 * BLOCKS)
// Products along D.
#define STEPS_D ((STEPS * 16 + DEPTH - 1) / DEPTH)

// Blocks of 16 columns of scores; the scores of a lane in a row. Score n is in column SCORE_AT(n).
#define SCORES (OTHERS_TILE / 16)
#define NUMBERS (SCORES * RESULTS)
#define SCORE(s, n) s[(n) / RESULTS][(n) % RESULTS]
#define SCORE_AT(n) ((n) / 8 * DEPTH + WAVE_LANE / 16 * 8 + (n) % 8)

// Registers of a thread for the operands that stay, and for its sums. Operands are read again for each tile if both exceed the registers.
#ifdef OUTPUT
#define FACTORS 1
#else
#define FACTORS 2
#endif
#ifdef KEYS
#define SUMMED 2
#else
#define SUMMED 1
#endif
#define OPERAND_REGISTERS (FACTORS * BLOCKS * STEPS_D * PART / 2)
#define SUM_REGISTERS (SUMMED * BLOCKS * STEPS * RESULTS)
#define ARE_KEPT (OPERAND_REGISTERS + SUM_REGISTERS <= (WAVE == 64 ? 256 : 112))

// 1 if there are registers for the next tile during the products of gradients.
#define IS_EARLY (WAVE == 64 || SUM_REGISTERS <= 96)

typedef union {
    FourWords word;
    S each[CHUNK];
} Chunk;

// A word of a row; zeros where it is not in memory.
FUNCTION FourWords read_chunk(Rows rows, int row, int column, int width) {
    FourWords zero = {0, 0, 0, 0};
    int is_inside = row < rows.count && column < width;
    FourWords v = *(GLOBAL const FourWords *)(is_inside ? rows.x + (row * rows.step + column) : rows.x);
    return is_inside ? v : zero;
}

// A lane's rows of a factor that stays, and their operands. Lanes without a row have the last one.
typedef struct {
    GLOBAL const S *x[BLOCKS];
    Operand each[ARE_KEPT ? BLOCKS : 1][ARE_KEPT ? STEPS_D : 1];
} Staying;

FUNCTION Operand read_operand(GLOBAL const S *x, int step, int width) {
    union {
        Operand all;
        FourWords words[PART / CHUNK];
    } v;
    EACH(i, PART / CHUNK) {
        int column = step * DEPTH + i * CHUNK + K_OF(WAVE_LANE);
        // Only the last columns may be beyond the width.
        if ((step + 1) * DEPTH < STEPS * 16) v.words[i] = *(GLOBAL const FourWords *)(x + column);
        else v.words[i] = column < width ? *(GLOBAL const FourWords *)(x + column) : (FourWords)(0);
    }
    return v.all;
}

FUNCTION void read_staying(Staying *to, Rows rows, int width) {
    EACH(i, BLOCKS) {
        int row = OWN_ROW + i * 16 + ROW_OF(WAVE_LANE);
        to->x[i] = rows.x + (row < rows.count ? row : rows.count - 1) * rows.step;
        if (ARE_KEPT) EACH(d, STEPS_D) to->each[i][d] = read_operand(to->x[i], d, width);
    }
}

// Words of UNIT adjacent rows that a thread copies together, and how often it does.
#define UNIT (OTHERS_TILE * DIM / CHUNK / THREADS >= 4 ? 4 : 2)
#define UNITS (OTHERS_TILE / UNIT * (DIM / CHUNK))
#define TURNS ((UNITS + THREADS - 1) / THREADS)
#define UNIT_ROW(i) ((LANE + (i) * THREADS) / (DIM / CHUNK) * UNIT)
#define UNIT_COLUMN(i) ((LANE + (i) * THREADS) % (DIM / CHUNK) * CHUNK)
#define HAS_UNIT(i) (((i) + 1) * THREADS <= UNITS || LANE + (i) * THREADS < UNITS)
#define TILE_ELEMENTS (OTHERS_TILE * DIM)

typedef struct {
    FourWords each[TURNS][UNIT];
} Share;

// Elements j of two words.
FUNCTION u32 pair(FourWords a, FourWords b, int j) {
    u32 low = a[j / 2], high = b[j / 2];
    return j % 2 ? low >> 16 | (high & 0xffff0000u) : (low & 0xffffu) | high << 16;
}

// This thread's share of a tile.
FUNCTION void fetch(Share *to, Rows rows, int width) {
    EACH(i, TURNS) {
        if (!HAS_UNIT(i)) continue;
        EACH(r, UNIT) to->each[i][r] = read_chunk(rows, UNIT_ROW(i) + r, UNIT_COLUMN(i), width);
    }
}

FUNCTION void keep_rows(LOCAL S *to, const Share *share) {
    EACH(i, TURNS) {
        if (!HAS_UNIT(i)) continue;
        int at = place(DIM, UNIT_ROW(i), UNIT_COLUMN(i));
        EACH(r, UNIT) *(LOCAL FourWords *)(to + behind(at, DIM, r, 0)) = share->each[i][r];
    }
}

FUNCTION void keep_turned(LOCAL S *to, const Share *share) {
    EACH(i, TURNS) {
        if (!HAS_UNIT(i)) continue;
        int first = place(OTHERS_TILE, UNIT_COLUMN(i), UNIT_ROW(i));
        COMPUTED(first);
        const FourWords *v = share->each[i];
        EACH(j, CHUNK) {
            LOCAL S *at = to + behind(first, OTHERS_TILE, j, 0);
            if (UNIT == 4) *(LOCAL u32x2 *)at = {pair(v[0], v[1], j), pair(v[UNIT - 2], v[UNIT - 1], j)};
            else *(LOCAL u32 *)at = pair(v[0], v[1], j);
        }
    }
}

// The rows of a tile that are columns of a block of scores: from ROW_OF_BLOCK on, this lane's OWN_COLUMN. They make the scores of a lane
// adjacent.
#define ROW_OF_BLOCK(block) ((block) / (DEPTH / 16) * DEPTH + (block) % (DEPTH / 16) * RESULTS)
#define OWN_COLUMN (COLUMN_OF(WAVE_LANE) / RESULTS * 8 + COLUMN_OF(WAVE_LANE) % RESULTS)

// s = the products of this wave's rows and a tile's.
FUNCTION void multiply_rows(Sums s[BLOCKS][SCORES], const Staying *a, LOCAL const S *tile, int width) {
    EACH(i, BLOCKS) EACH(j, SCORES) s[i][j] = (Sums)(0);
    EACH(d, STEPS_D) {
        Operand va[BLOCKS];
        EACH(i, BLOCKS) va[i] = ARE_KEPT ? a->each[i][ARE_KEPT ? d : 0] : read_operand(a->x[i], d, width);
        EACH(j, SCORES) {
            Operand vb = load_operand(tile, DIM, OWN_COLUMN, ROW_OF_BLOCK(j), d * DEPTH);
            EACH(i, BLOCKS) multiply(s[i][j], va[i], vb);
        }
        EACH(i, BLOCKS) EACH(j, SCORES) MULTIPLIED(s[i][j]);
    }
}

// The operand of the next product from eight scores of a lane, rounded.
FUNCTION Operand operand_of(const Sums *s) {
    Chunk own;
    EACH(n, 8) STORE(T, own.each, n, SCORE(s, n));
#if PART == 8
    return own.word;
#else
    // Lane l ^ 16 has the other half of the row.
    union {
        Operand all;
        FourWords words[2];
    } v;
    FourWords other;
    EACH(i, 4) other[i] = wave_xor(own.word[i], 16);
    v.words[0] = WAVE_LANE < 16 ? own.word : other;
    v.words[1] = WAVE_LANE < 16 ? other : own.word;
    return v.all;
#endif
}

// sums += s, rounded, times the rows of a turned tile.
FUNCTION void add_product(Sums sums[BLOCKS][STEPS], Sums s[BLOCKS][SCORES], LOCAL const S *turned) {
    EACH(k, OTHERS_TILE / DEPTH) {
        Operand va[BLOCKS];
        EACH(i, BLOCKS) va[i] = operand_of(s[i] + k * (DEPTH / 16));
        EACH(n, STEPS) {
            Operand vb = load_b(turned, OTHERS_TILE, n * 16, k * DEPTH);
            EACH(i, BLOCKS) multiply(sums[i][n], va[i], vb);
            if (n % 4 == 3 || n == STEPS - 1) EACH(i, BLOCKS) EACH(m, n % 4 + 1) MULTIPLIED(sums[i][n - m]);
        }
    }
}

// The first `count` rows are the sums, the others of `rows` zeros.
FUNCTION void put_sums(GLOBAL S *to, Sums sums[BLOCKS][STEPS], int rows, int count, i64 step, int width, f32 factor) {
    typedef struct {
        u32x2 words[RESULTS / 4];
    } Stored;
    EACH(i, BLOCKS) {
        int row = OWN_ROW + i * 16 + RESULT_ROW;
        if (row >= rows) continue;
        EACH(n, STEPS) {
            int column = n * 16 + RESULT_COLUMN;
            union {
                Stored words;
                S each[RESULTS];
            } out;
            EACH(r, RESULTS) STORE(T, out.each, r, row < count ? sums[i][n][r] * factor : 0.0f);
            if (column < width) *(GLOBAL Stored *)(to + (row * step + column)) = out.words;
        }
    }
}

#ifdef DROPOUT
// What `is_kept` says of eight adjacent weights, a bit for each.
FUNCTION u32 are_kept(i64 element DROPOUT_ARGUMENTS) {
    u32 bits = 0;
    EACH(i, 3) {
        Draws draws = draws_of(base, (u64)offset + (u64)(element >> 2) + (u64)i, seed, stream);
        EACH(j, 4) bits |= (u32)(draws.v[j] <= (u32)(threshold - 1)) << (i * 4 + j);
    }
    return bits >> (element & 3);
}
#endif

// Scores as `masked` has them, unless every query of the tile attends to every key.
#define MASK_SCORES(s, own_query, own_key) \
    EACH(i, BLOCKS) EACH(n, NUMBERS) { \
        SCORE(s[i], n) *= MASK_SCALE; \
        SCORE(s[i], n) = masked(SCORE(s[i], n), p, span, batch, head, own_query, own_key MASK_VALUES); \
    }

#ifdef OUTPUT
KERNEL(attention_mma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL S *o, GLOBAL A *lse, Ints p,
                      A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS STATUS_ARGUMENTS) {
    CHECK_ENDS();
    SHARED_GIVEN(u32x4, tiles, 2 * TILE_ELEMENTS / CHUNK);
    LOCAL S *at_k = (LOCAL S *)tiles, *at_v = at_k + TILE_ELEMENTS;
    TILE_OF_QUERIES(TILE);
    f32 slope = SLOPE;

    Staying own_q;
    Share share;
    Sums sums[BLOCKS][STEPS];
    f32 largest[BLOCKS], total[BLOCKS];
    EACH(i, BLOCKS) {
        EACH(n, STEPS) sums[i][n] = (Sums)(0);
        largest[i] = LOWEST;
        total[i] = 0;
    }
    if (key < end) {
        read_staying(&own_q, of_q, width);
        fetch(&share, ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key, last_key), width);
        keep_rows(at_k, &share);
    }
    for (; key < end; key += OTHERS_TILE) {
        // The keys are there, and all threads have finished with the values before.
        BARRIER();
        fetch(&share, ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + key, last_key), width);
        Sums s[BLOCKS][SCORES];
        multiply_rows(s, &own_q, at_k, width);
        keep_turned(at_v, &share);
        if (!is_whole(span, query, TILE, key, OTHERS_TILE)) {
            MASK_SCORES(s, query + OWN_ROW + i * 16 + RESULT_ROW, key + SCORE_AT(n))
        }
        EACH(i, BLOCKS) {
            f32 next = largest[i];
            // A score that is NaN makes its weight NaN.
            EACH(n, NUMBERS) next = fmax_(next, SCORE(s[i], n));
            for (int by = 16; by < WAVE; by *= 2) next = fmax_(next, from_lane(next, by));
            f32 shift = shift_of(next, slope), factor = raise_largest(&largest[i], next, slope, shift);
            total[i] *= factor;
            EACH(n, STEPS) sums[i][n] *= factor;
            EACH(n, NUMBERS) {
                f32 weight = exp2_near_(fma_(SCORE(s[i], n), slope, -shift));
                total[i] += weight;
                SCORE(s[i], n) = weight;
            }
#ifdef DROPOUT
            int own_query = query + OWN_ROW + i * 16 + RESULT_ROW;
            EACH(m, NUMBERS / 8) {
                u32 bits = are_kept(ELEMENT(own_query, key + SCORE_AT(m * 8)) DROPOUT_VALUES);
                EACH(n, 8) SCORE(s[i], m * 8 + n) *= (f32)(bits >> n & 1);
            }
#endif
        }
        // The values are there, and all threads have finished with the keys.
        BARRIER();
        int has_next = key + OTHERS_TILE < end;
        if (has_next) fetch(&share, ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key + OTHERS_TILE, last_key), width);
        add_product(sums, s, at_v);
        if (has_next) keep_rows(at_k, &share);
    }
    i64 row = (batch * heads + head) * N_QUERIES + first;
    EACH(i, BLOCKS) {
        for (int by = 16; by < WAVE; by *= 2) {
            f32 other = from_lane(total[i], by);
            total[i] += other;
        }
        int is_empty = total[i] == 0, own = OWN_ROW + i * 16 + RESULT_ROW;
        f32 share_of_one = is_empty ? 1.0f : FACTOR / total[i];
        EACH(n, STEPS) sums[i][n] *= share_of_one;
        if (WAVE_LANE < 16 && own < of_q.count) lse[row + own] = log_of_sum(largest[i], total[i], slope);
    }
    put_sums(o + RESULT_AT(batch, head, first), sums, of_q.count, of_q.count, RESULT_STRIDES(2), width, 1);
}
#endif

#ifdef QUERIES
KERNEL(attention_queries_mma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL const S *dy, GLOBAL const A *lse,
                              GLOBAL const A *delta, GLOBAL S *dq, Ints p, A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS) {
    SHARED_GIVEN(u32x4, tiles, 3 * TILE_ELEMENTS / CHUNK);
    LOCAL S *at_k = (LOCAL S *)tiles, *turned_k = at_k + TILE_ELEMENTS, *at_v = turned_k + TILE_ELEMENTS;
    TILE_OF_QUERIES(TILE);
    i64 row = (batch * heads + head) * N_QUERIES + first;
    f32 slope = SLOPE;

#define FETCH(next) \
    fetch(&share_k, ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + (next), last_key), width); \
    fetch(&share_v, ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + (next), last_key), width)
    Staying own_q, own_dy;
    Share share_k, share_v;
    Sums sums[BLOCKS][STEPS];
    f32 own_lse[BLOCKS], own_delta[BLOCKS];
    EACH(i, BLOCKS) {
        EACH(n, STEPS) sums[i][n] = (Sums)(0);
        int own = OWN_ROW + i * 16 + RESULT_ROW, is_inside = own < of_q.count;
        own_lse[i] = is_inside ? lse[row + own] * LOG2E : LOWEST;
        own_delta[i] = is_inside ? delta[row + own] : 0.0f;
    }
    if (key < end) {
        read_staying(&own_q, of_q, width);
        read_staying(&own_dy, ROWS_OF(dy, DY_STRIDES, batch, head, first, span.query + span.queries), width);
        if (IS_EARLY) {
            FETCH(key);
        }
    }
    for (; key < end; key += OTHERS_TILE) {
        if (!IS_EARLY) {
            FETCH(key);
        }
        keep_rows(at_k, &share_k);
        keep_turned(turned_k, &share_k);
        keep_rows(at_v, &share_v);
        BARRIER();
        Sums s[BLOCKS][SCORES], dp[BLOCKS][SCORES];
        multiply_rows(s, &own_q, at_k, width);
        multiply_rows(dp, &own_dy, at_v, width);
        if (IS_EARLY && key + OTHERS_TILE < end) {
            FETCH(key + OTHERS_TILE);
        }
        if (!is_whole(span, query, TILE, key, OTHERS_TILE)) {
            MASK_SCORES(s, query + OWN_ROW + i * 16 + RESULT_ROW, key + SCORE_AT(n))
        }
        EACH(i, BLOCKS) EACH(m, NUMBERS / 8) {
#ifdef DROPOUT
            u32 bits = are_kept(ELEMENT(query + OWN_ROW + i * 16 + RESULT_ROW, key + SCORE_AT(m * 8)) DROPOUT_VALUES);
#endif
            EACH(n, 8) {
                f32 score = SCORE(s[i], m * 8 + n), dw = SCORE(dp[i], m * 8 + n);
#ifdef DROPOUT
                dw *= kept * (f32)(bits >> n & 1);
#endif
                SCORE(s[i], m * 8 + n) = weight(score, slope, own_lse[i]) * (dw - own_delta[i]);
            }
        }
        add_product(sums, s, turned_k);
        // All threads have finished with the keys and the values.
        BARRIER();
    }
    put_sums(dq + RESULT_AT(batch, head, first), sums, of_q.count, of_q.count, RESULT_STRIDES(2), width, scale);
}
#endif

#ifdef KEYS
KERNEL(attention_keys_mma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL const S *dy, GLOBAL const A *lse,
                           GLOBAL const A *delta, GLOBAL S *dk, GLOBAL S *dv, Ints p, A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS) {
    SHARED_GIVEN(u32x4, tiles, 4 * TILE_ELEMENTS / CHUNK);
    LOCAL S *at_q = (LOCAL S *)tiles, *turned_q = at_q + TILE_ELEMENTS;
    LOCAL S *at_dy = turned_q + TILE_ELEMENTS, *turned_dy = at_dy + TILE_ELEMENTS;
    TILE_OF_KEYS();
    int last_query = span.query + span.queries;
    f32 slope = SLOPE;

    Staying own_k, own_v;
    Share share_q, share_dy;
    Sums sums_k[BLOCKS][STEPS], sums_v[BLOCKS][STEPS];
    EACH(i, BLOCKS) EACH(n, STEPS) sums_k[i][n] = sums_v[i][n] = (Sums)(0);
    // The queries of a tile, and of the tile after it, which has the next queries or the next head's.
    i64 head = key_head * SHARED_BY, end_head = start < end ? head + SHARED_BY : head;
    int query = start;
#define FETCH() \
    fetch(&share_q, ROWS_OF(q, QUERY_STRIDES, batch, head, span.query + query, last_query), width); \
    fetch(&share_dy, ROWS_OF(dy, DY_STRIDES, batch, head, span.query + query, last_query), width)
    if (head < end_head) {
        read_staying(&own_k, of_k, width);
        read_staying(&own_v, ROWS_OF(v, VALUE_STRIDES, batch, key_head, first, last_key), width);
        if (IS_EARLY) {
            FETCH();
        }
    }
    while (head < end_head) {
        if (!IS_EARLY) {
            FETCH();
        }
        keep_rows(at_q, &share_q);
        keep_turned(turned_q, &share_q);
        keep_rows(at_dy, &share_dy);
        keep_turned(turned_dy, &share_dy);
        BARRIER();
        // Their rows are keys, their columns queries.
        Sums s[BLOCKS][SCORES], dp[BLOCKS][SCORES];
        multiply_rows(s, &own_k, at_q, width);
        multiply_rows(dp, &own_v, at_dy, width);
        i64 row = (batch * HEADS + head) * N_QUERIES + span.query;
        if (!is_whole(span, query, OTHERS_TILE, key, TILE)) {
            MASK_SCORES(s, query + SCORE_AT(n), key + OWN_ROW + i * 16 + RESULT_ROW)
        }
        EACH(m, SCORES) {
            EACH(r, RESULTS) {
                int n = m * RESULTS + r;
                int own_query = query + SCORE_AT(n), is_inside = own_query < span.queries;
                f32 own_lse = is_inside ? lse[row + own_query] * LOG2E : LOWEST;
                f32 own_delta = is_inside ? delta[row + own_query] : 0.0f;
                EACH(i, BLOCKS) {
                    f32 dw = SCORE(dp[i], n), share = weight(SCORE(s[i], n), slope, own_lse);
#ifdef DROPOUT
                    int own_key = key + OWN_ROW + i * 16 + RESULT_ROW;
                    f32 is_one = is_kept(ELEMENT(own_query, own_key) DROPOUT_VALUES);
                    SCORE(s[i], n) = share * is_one;
                    dw *= kept * is_one;
#else
                    SCORE(s[i], n) = share;
#endif
                    SCORE(dp[i], n) = share * (dw - own_delta);
                }
            }
            // Otherwise the numbers of all queries are loaded at once.
            EACH(i, BLOCKS) {
                MULTIPLIED(s[i][m]);
                MULTIPLIED(dp[i][m]);
            }
        }
        query += OTHERS_TILE;
        if (query >= end) {
            query = start;
            head++;
        }
        if (IS_EARLY && head < end_head) {
            FETCH();
        }
        add_product(sums_v, s, turned_dy);
        add_product(sums_k, dp, turned_q);
        // All threads have finished with the queries.
        BARRIER();
    }
    i64 row = RESULT_AT(batch, key_head, first);
    put_sums(dk + row, sums_k, written, of_k.count, RESULT_STRIDES(2), width, scale);
    put_sums(dv + row, sums_v, written, of_k.count, RESULT_STRIDES(2), width, FACTOR);
}
#endif

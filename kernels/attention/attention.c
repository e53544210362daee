// Attention in tiles: o = softmax(scale q k^T + mask) v, and its gradients, without a matrix of all scores. q is [B, Hq, Tq, D], k and
// v are [B, Hk, Tk, D]. Heads of queries share the keys of head h / (Hq / Hk).
//
// A group has GRID x GRID threads. A thread computes 4 x 4 scores of a tile of TILE x TILE, and 4 rows of a result, of which it has
// every GRID-th run of columns. Factors go through local memory, CHUNK columns or rows at a time. Sums are in a fixed order.
//
// GRID: 8 or 16, threads along a side of a tile
// THREADS: GRID^2
// TEAM: GRID, threads that share a row of scores
// ACC: f32
// DIM: D, rounded up to a multiple of GRID
// VECTOR: 1 or 4, elements of a word
// WORD: u16 .. u32x4, type of a word
// OUTPUT, DELTA, QUERIES, KEYS: flag, the kernel: attention, attention_delta, attention_queries, attention_keys
// HAS_DLSE: flag, for attention_delta: the logarithms have a gradient
// T, MASK, ADDS_MASK, DROPOUT, BASE, PACKED, LENGTHS, integers: as in attention.h

#define TILE (4 * GRID)
#include "attention/attention.h"

// 16 bytes of padding per row of local memory, against bank conflicts.
#define PITCH (TILE + 4)
#define CHUNK 16
// Columns of a thread, in runs of adjacent ones.
#define COLUMNS (DIM / GRID)
#define RUN (COLUMNS % 4 == 0 ? 4 : COLUMNS % 2 == 0 ? 2 : 1)
#define COLUMN(c) (((c) / RUN * GRID + LANE % GRID) * RUN + (c) % RUN)
// The first row and the first column of a thread's scores.
#define OWN_ROW (LANE / GRID * 4)
#define OWN_COLUMN (LANE % GRID * 4)

// Four numbers in local memory.
typedef union {
    u32x4 word;
    A each[4];
} Quad;

FUNCTION void read_word(A *v, Rows rows, int row, int column, int width) {
    int is_inside = row < rows.count && column < width;
    Word r;
    SET_WORD(r, *(GLOBAL const WORD *)(is_inside ? rows.x + (row * rows.step + column) : rows.x));
    EACH(j, VECTOR) v[j] = is_inside ? (A)LOAD(T, r.each, j) : (A)0;
}

// CHUNK columns of TILE rows, transposed: [CHUNK, PITCH].
LOCAL_FUNCTION void stage_columns(LOCAL A *to, Rows rows, int first, int width) {
    EACH(i, TILE * CHUNK / VECTOR / THREADS) {
        int e = LANE + i * THREADS, row = e / 2 % TILE, column = (e % 2 + e / (2 * TILE) * 2) * VECTOR;
        A v[VECTOR];
        read_word(v, rows, row, first + column, width);
        EACH(j, VECTOR) to[(column + j) * PITCH + row] = v[j];
    }
}

// CHUNK rows of all columns: [CHUNK, DIM].
LOCAL_FUNCTION void stage_rows(LOCAL A *to, Rows rows, int first, int width) {
    for (int e = LANE; e < CHUNK * DIM / VECTOR; e += THREADS) {
        int row = e / (DIM / VECTOR), column = e % (DIM / VECTOR) * VECTOR;
        A v[VECTOR];
        read_word(v, rows, first + row, column, width);
        EACH(j, VECTOR) to[row * DIM + column + j] = v[j];
    }
}

LOCAL_FUNCTION void read_four(A *v, LOCAL const A *from) {
    Quad four;
    four.word = *(LOCAL const u32x4 *)from;
    EACH(i, 4) v[i] = four.each[i];
}

// s[i][j] += the product of row i of a and row j of b.
LOCAL_FUNCTION void add_products(A *s, LOCAL const A *a, LOCAL const A *b) {
    EACH(d, CHUNK) {
        A va[4], vb[4];
        read_four(va, a + (d * PITCH + OWN_ROW));
        read_four(vb, b + (d * PITCH + OWN_COLUMN));
        EACH(i, 4) EACH(j, 4) s[i * 4 + j] = fma_(va[i], vb[j], s[i * 4 + j]);
    }
}

// sums[i] += weights [CHUNK, PITCH] of row i, times rows [CHUNK, DIM].
LOCAL_FUNCTION void add_rows(A *sums, LOCAL const A *weights, LOCAL const A *rows) {
    EACH(n, CHUNK) {
        A w[4], v[COLUMNS];
        read_four(w, weights + (n * PITCH + OWN_ROW));
#if COLUMNS % 4 == 0
        EACH(c, COLUMNS / 4) read_four(v + c * 4, rows + (n * DIM + COLUMN(c * 4)));
#else
        EACH(c, COLUMNS) v[c] = rows[n * DIM + COLUMN(c)];
#endif
        EACH(i, 4) EACH(c, COLUMNS) sums[i * COLUMNS + c] = fma_(w[i], v[c], sums[i * COLUMNS + c]);
    }
}

// Writes v[i][j] to local memory, where the columns j are rows.
LOCAL_FUNCTION void put_weights(LOCAL A *to, const A *v) {
    EACH(j, 4) {
        Quad four;
        EACH(i, 4) four.each[i] = v[i * 4 + j];
        *(LOCAL u32x4 *)(to + ((OWN_COLUMN + j) * PITCH + OWN_ROW)) = four.word;
    }
}

FUNCTION void put_results(GLOBAL S *to, const A *sums, int rows, i64 step, int width, A factor) {
    EACH(i, 4) {
        if (OWN_ROW + i >= rows) continue;
        EACH(c, COLUMNS) {
            if (COLUMN(c) < width) STORE(T, to, (OWN_ROW + i) * step + COLUMN(c), sums[i * COLUMNS + c] * factor);
        }
    }
}

#ifdef OUTPUT
KERNEL(attention)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL S *o, GLOBAL A *lse, Ints p,
                  A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS STATUS_ARGUMENTS) {
    CHECK_ENDS();
    SHARED(u32x4, staged_words, (2 * CHUNK * PITCH > CHUNK * DIM ? 2 * CHUNK * PITCH : CHUNK * DIM) / 4);
    SHARED(u32x4, weight_words, TILE * PITCH / 4);
    LOCAL A *staged = (LOCAL A *)staged_words, *weights = (LOCAL A *)weight_words;
    JOINS(4);
    TILE_OF_QUERIES(TILE);

    A sums[4 * COLUMNS], largest[4], total[4];
    EACH(i, 4 * COLUMNS) sums[i] = 0;
    EACH(i, 4) {
        largest[i] = LOWEST;
        total[i] = 0;
    }
    for (; key < end; key += TILE) {
        Rows of_k = ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key, last_key);
        Rows of_v = ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + key, last_key);
        A s[16], next[4];
        EACH(i, 16) s[i] = 0;
        for (int d = 0; d < width; d += CHUNK) {
            BARRIER();
            stage_columns(staged, of_q, d, width);
            stage_columns(staged + CHUNK * PITCH, of_k, d, width);
            BARRIER();
            add_products(s, staged, staged + CHUNK * PITCH);
        }
        EACH(i, 4) {
            next[i] = largest[i];
            EACH(j, 4) {
                A *score = s + (i * 4 + j);
                *score = masked(*score * scale, p, span, batch, head, query + OWN_ROW + i, key + OWN_COLUMN + j MASK_VALUES);
                next[i] = LARGER(next[i], *score);
            }
        }
        team_join(next, 4, SIDE(4), JOIN_TO_MAX);
        EACH(i, 4) {
            // Rows without a score above -infinity have weights of 0.
            A shift = next[i] == LOWEST ? (A)0 : next[i], factor = largest[i] == next[i] ? (A)1 : POWER(largest[i] - shift);
            largest[i] = next[i];
            total[i] *= factor;
            EACH(c, COLUMNS) sums[i * COLUMNS + c] *= factor;
            EACH(j, 4) {
                s[i * 4 + j] = POWER(s[i * 4 + j] - shift);
                total[i] += s[i * 4 + j];
            }
#ifdef DROPOUT
            A z[4];
            factors(z, 1, ELEMENT(query + OWN_ROW + i, key + OWN_COLUMN) DROPOUT_VALUES);
            EACH(j, 4) s[i * 4 + j] *= z[j];
#endif
        }
        put_weights(weights, s);
        for (int n = 0; n < of_v.count; n += CHUNK) {
            BARRIER();
            stage_rows(staged, of_v, n, width);
            BARRIER();
            add_rows(sums, weights + n * PITCH, staged);
        }
    }
    team_join(total, 4, SIDE(4), JOIN_TO_SUM);
    i64 row = (batch * heads + head) * N_QUERIES + first;
    EACH(i, 4) {
        int is_empty = total[i] == 0;
        EACH(c, COLUMNS) sums[i * COLUMNS + c] /= is_empty ? (A)1 : total[i];
        if (LANE % GRID == 0 && OWN_ROW + i < of_q.count)
            lse[row + OWN_ROW + i] = is_empty ? LOWEST : largest[i] + log_(total[i]);
    }
    put_results(o + RESULT_AT(batch, head, first), sums, of_q.count, RESULT_STRIDES(2), width, 1);
}
#endif

#ifdef DELTA
// The sum of dy o over a row, less the gradient of its logarithm.
KERNEL(attention_delta)(GLOBAL const S *dy, GLOBAL const A *dlse, GLOBAL const S *o, GLOBAL A *delta, Ints p, i64 rows) {
    JOINS(1);
    i64 row = GROUP * TEAMS + LANE / TEAM, query = row % N_QUERIES, head = row / N_QUERIES % HEADS, batch = row / N_QUERIES / HEADS;
    int width = (int)ROW_WIDTH;
    A sum = 0;
    if (row < rows) {
        GLOBAL const S *g = dy + (batch * DY_STRIDES(0) + head * DY_STRIDES(1) + query * DY_STRIDES(2));
        GLOBAL const S *own = o + RESULT_AT(batch, head, query);
        for (int d = MEMBER * VECTOR; d < width; d += TEAM * VECTOR) {
            Word a, b;
            SET_WORD(a, *(GLOBAL const WORD *)(g + d));
            SET_WORD(b, *(GLOBAL const WORD *)(own + d));
            EACH(j, VECTOR) sum = fma_((A)LOAD(T, a.each, j), (A)LOAD(T, b.each, j), sum);
        }
    }
    sum = TEAM_SUM(sum);
    if (row >= rows || MEMBER > 0) return;
#ifdef HAS_DLSE
    sum -= dlse[row];
#endif
    delta[row] = sum;
}
#endif

#if defined(QUERIES) || defined(KEYS)
#define STAGED_WORDS ((4 * CHUNK * PITCH > CHUNK * DIM ? 4 * CHUNK * PITCH : CHUNK * DIM) / 4)

// The weight of a score in a row whose sum has this logarithm.
FUNCTION A weight(A score, A lse) { return lse == LOWEST ? (A)0 : POWER(score - lse); }

// s[i][j] += the product of row i of a and row j of b; dp[i][j] of c and d.
LOCAL_FUNCTION void add_both(A *s, A *dp, LOCAL A *staged, Rows a, Rows b, Rows c, Rows d, int width) {
    EACH(i, 16) s[i] = dp[i] = 0;
    for (int first = 0; first < width; first += CHUNK) {
        BARRIER();
        stage_columns(staged, a, first, width);
        stage_columns(staged + CHUNK * PITCH, b, first, width);
        stage_columns(staged + 2 * CHUNK * PITCH, c, first, width);
        stage_columns(staged + 3 * CHUNK * PITCH, d, first, width);
        BARRIER();
        add_products(s, staged, staged + CHUNK * PITCH);
        add_products(dp, staged + 2 * CHUNK * PITCH, staged + 3 * CHUNK * PITCH);
    }
}
#endif

#ifdef QUERIES
// The gradient of q, for a tile of queries: the sum over keys.
KERNEL(attention_queries)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL const S *dy, GLOBAL const A *lse,
                          GLOBAL const A *delta, GLOBAL S *dq, Ints p, A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS) {
    SHARED(u32x4, staged_words, STAGED_WORDS);
    SHARED(u32x4, weight_words, TILE * PITCH / 4);
    LOCAL A *staged = (LOCAL A *)staged_words, *weights = (LOCAL A *)weight_words;
    TILE_OF_QUERIES(TILE);
    Rows of_dy = ROWS_OF(dy, DY_STRIDES, batch, head, first, span.query + span.queries);
    i64 row = (batch * heads + head) * N_QUERIES + first;

    A sums[4 * COLUMNS], own_lse[4], own_delta[4];
    EACH(i, 4 * COLUMNS) sums[i] = 0;
    EACH(i, 4) {
        int is_inside = OWN_ROW + i < of_q.count;
        own_lse[i] = is_inside ? lse[row + OWN_ROW + i] : LOWEST;
        own_delta[i] = is_inside ? delta[row + OWN_ROW + i] : 0;
    }
    for (; key < end; key += TILE) {
        Rows of_k = ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + key, last_key);
        Rows of_v = ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + key, last_key);
        A s[16], dp[16];
        add_both(s, dp, staged, of_q, of_k, of_dy, of_v, width);
        EACH(i, 4) {
#ifdef DROPOUT
            A z[4];
            factors(z, 1, ELEMENT(query + OWN_ROW + i, key + OWN_COLUMN) DROPOUT_VALUES);
            EACH(j, 4) dp[i * 4 + j] *= z[j];
#endif
            EACH(j, 4) {
                A *score = s + (i * 4 + j);
                *score = masked(*score * scale, p, span, batch, head, query + OWN_ROW + i, key + OWN_COLUMN + j MASK_VALUES);
                *score = weight(*score, own_lse[i]) * (dp[i * 4 + j] - own_delta[i]);
            }
        }
        put_weights(weights, s);
        for (int n = 0; n < of_k.count; n += CHUNK) {
            BARRIER();
            stage_rows(staged, of_k, n, width);
            BARRIER();
            add_rows(sums, weights + n * PITCH, staged);
        }
    }
    put_results(dq + RESULT_AT(batch, head, first), sums, of_q.count, RESULT_STRIDES(2), width, scale);
}
#endif

#ifdef KEYS
// The gradients of k and v, for a tile of keys: sums over the heads of queries that share them, and over queries. Here the rows of
// scores are keys.
KERNEL(attention_keys)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL const S *dy, GLOBAL const A *lse,
                       GLOBAL const A *delta, GLOBAL S *dk, GLOBAL S *dv, Ints p, A scale MASK_ARGUMENTS DROPOUT_ARGUMENTS SPAN_ARGUMENTS) {
    SHARED(u32x4, staged_words, STAGED_WORDS);
    SHARED(u32x4, weight_words, TILE * PITCH / 4);
    LOCAL A *staged = (LOCAL A *)staged_words, *weights = (LOCAL A *)weight_words;
    TILE_OF_KEYS();
    Rows of_v = ROWS_OF(v, VALUE_STRIDES, batch, key_head, first, last_key);

    A sums_k[4 * COLUMNS], sums_v[4 * COLUMNS];
    EACH(i, 4 * COLUMNS) sums_k[i] = sums_v[i] = 0;
    for (i64 head = key_head * SHARED_BY; head < (key_head + 1) * SHARED_BY; head++) {
        i64 row = (batch * HEADS + head) * N_QUERIES + span.query;
        for (int query = start; query < end; query += TILE) {
            Rows of_q = ROWS_OF(q, QUERY_STRIDES, batch, head, span.query + query, span.query + span.queries);
            Rows of_dy = ROWS_OF(dy, DY_STRIDES, batch, head, span.query + query, span.query + span.queries);
            A s[16], dp[16], z[16];
            add_both(s, dp, staged, of_k, of_q, of_v, of_dy, width);
            EACH(j, 4) {
                int own = query + OWN_COLUMN + j, is_inside = own < span.queries;
                A own_lse = is_inside ? lse[row + own] : LOWEST, own_delta = is_inside ? delta[row + own] : 0;
#ifdef DROPOUT
                factors(z + j, 4, ELEMENT(own, key + OWN_ROW) DROPOUT_VALUES);
#else
                EACH(i, 4) z[i * 4 + j] = 1;
#endif
                EACH(i, 4) {
                    int at = i * 4 + j;
                    A score = masked(s[at] * scale, p, span, batch, head, own, key + OWN_ROW + i MASK_VALUES);
                    A share = weight(score, own_lse);
                    s[at] = share * z[at];
                    dp[at] = share * (dp[at] * z[at] - own_delta);
                }
            }
            put_weights(weights, s);
            for (int n = 0; n < of_q.count; n += CHUNK) {
                BARRIER();
                stage_rows(staged, of_dy, n, width);
                BARRIER();
                add_rows(sums_v, weights + n * PITCH, staged);
            }
            BARRIER();
            put_weights(weights, dp);
            for (int n = 0; n < of_q.count; n += CHUNK) {
                BARRIER();
                stage_rows(staged, of_q, n, width);
                BARRIER();
                add_rows(sums_k, weights + n * PITCH, staged);
            }
        }
    }
    i64 row = RESULT_AT(batch, key_head, first);
    put_results(dk + row, sums_k, written, RESULT_STRIDES(2), width, scale);
    put_results(dv + row, sums_v, written, RESULT_STRIDES(2), width, 1);
}
#endif

// Attention of few queries to many keys, as for the next token of a text: attention_parts computes the results of ROWS rows of scores for a
// part of the keys of a head, and attention_joined the results of all parts. Sums are in a fixed order.
//
// A head of keys has Hq / Hk * Tq rows: of the first of the heads of queries that share it, of the second, and so on. A team takes a key.
// It has UNROLL keys at once, and keeps sums and the largest score of its keys. A part has the next keys, as many as other parts.
//
// THREADS: 128 for attention_parts and 256 for attention_joined, or a smaller power of 2
// TEAM: power of 2 up to 32, threads of a key
// ACC: f32
// VECTOR, WORD: as in attention.c
// CHUNKS: 1.., words of a row that a thread has
// ROWS: 1, 2 or 4
// MOST_PARTS: for attention_joined: parts, at most
// COLUMNS, SLICES: for attention_joined, powers of 2 whose product is THREADS: D, rounded up, and the slices of parts
// UNROLL: 1.., keys of a team at once
// PARTS, JOINED: flag, the kernel
// ALONE: flag, there is one part, whose results are those of the rows
// T, MASK, ADDS_MASK, PACKED, LENGTHS, integers: as in attention.h; in place of tiles, groups of ROWS rows of a head of keys
// results: of each of the `rows` of `lse` and part, the largest score and the sum of powers; then of each the sum of values, D numbers

#define TILE 1
#include "attention/attention.h"

#ifdef PARTS
// The first column of a thread's word, and the columns of a key in local memory.
#define COLUMN(c) (((c) * TEAM + MEMBER) * VECTOR)
#define COLUMNS (CHUNKS * VECTOR)
#define PITCH (TEAM * COLUMNS)
#define STEP (TEAMS * UNROLL)

FUNCTION void read_rows(Word *to, GLOBAL const S *rows, i64 step, int key, int end, int width) {
    EACH(u, UNROLL) EACH(c, CHUNKS) {
        int own = key + u * TEAMS + LANE / TEAM, is_inside = own < end && COLUMN(c) < width;
        SET_WORD(to[u * CHUNKS + c], *(GLOBAL const WORD *)(is_inside ? rows + (own * step + COLUMN(c)) : rows));
    }
}

KERNEL(attention_parts)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL S *o, GLOBAL A *lse, Ints p,
                        A scale MASK_ARGUMENTS SPAN_ARGUMENTS STATUS_ARGUMENTS, GLOBAL A *results, i64 parts, i64 rows) {
    SHARED(A, best, ROWS * TEAMS);
    SHARED(A, totals, ROWS * TEAMS);
    SHARED(A, factors, ROWS * TEAMS);
    SHARED(A, columns, ROWS * TEAMS * PITCH);
    JOINS(ROWS * UNROLL);
    CHECK_ENDS();
    int width = (int)ROW_WIDTH;
    i64 shared_by = SHARED_BY, key_heads = HEADS / shared_by, blocks = TILES, part = GROUP % parts, block = GROUP / parts % blocks;
    i64 key_head = GROUP / parts / blocks % key_heads, batch = GROUP / parts / blocks / key_heads, tile = 0;
    Span span = span_of(p, batch, &tile, 0 SPAN_VALUES);
    int start = span.low > 0 ? span.low : 0, end = end_of_keys(span, 0, span.queries);
    i64 length = end > start ? ((end - start + parts - 1) / parts + STEP - 1) / STEP * STEP : 0;
    i64 from = start + part * length, to = from + length < end ? from + length : end;
    i64 k_step = KEY_STRIDES(2), v_step = VALUE_STRIDES(2);
    GLOBAL const S *of_k = k + (batch * KEY_STRIDES(0) + key_head * KEY_STRIDES(1));
    GLOBAL const S *of_v = v + (batch * VALUE_STRIDES(0) + key_head * VALUE_STRIDES(1));

    A own_q[ROWS * COLUMNS], sums[ROWS * COLUMNS], largest[ROWS], total[ROWS];
    EACH(r, ROWS) {
        i64 row = block * ROWS + r, head = key_head * shared_by + row / span.queries, query = row % span.queries;
        int has_row = row < shared_by * span.queries;
        i64 at = batch * QUERY_STRIDES(0) + head * QUERY_STRIDES(1) + query * QUERY_STRIDES(2);
        EACH(c, CHUNKS) {
            int is_inside = has_row && COLUMN(c) < width;
            Word word;
            SET_WORD(word, *(GLOBAL const WORD *)(is_inside ? q + (at + COLUMN(c)) : q));
            EACH(j, VECTOR) own_q[r * COLUMNS + c * VECTOR + j] = is_inside ? (A)LOAD(T, word.each, j) : (A)0;
        }
        EACH(c, COLUMNS) sums[r * COLUMNS + c] = 0;
        largest[r] = LOWEST;
        total[r] = 0;
    }
    Word of_keys[UNROLL * CHUNKS], values[UNROLL * CHUNKS];
    if (from < to) {
        read_rows(of_keys, of_k, k_step, (int)from, (int)to, width);
        read_rows(values, of_v, v_step, (int)from, (int)to, width);
    }
    // The next keys and values are read as soon as these are used.
    for (i64 key = from; key < to; key += STEP) {
        A scores[ROWS * UNROLL];
        EACH(i, ROWS * UNROLL) scores[i] = 0;
        EACH(u, UNROLL) EACH(c, CHUNKS) {
            int is_inside = key + u * TEAMS + LANE / TEAM < to && COLUMN(c) < width;
            EACH(j, VECTOR) {
                A x = is_inside ? (A)LOAD(T, of_keys[u * CHUNKS + c].each, j) : (A)0;
                EACH(r, ROWS) scores[r * UNROLL + u] = fma_(own_q[r * COLUMNS + c * VECTOR + j], x, scores[r * UNROLL + u]);
            }
        }
        read_rows(of_keys, of_k, k_step, (int)key + STEP, (int)to, width);
        team_join(scores, ROWS * UNROLL, SIDE(ROWS * UNROLL), JOIN_TO_SUM);
        EACH(r, ROWS) {
            i64 row = block * ROWS + r, head = key_head * shared_by + row / span.queries;
            int query = (int)(row % span.queries), has_row = row < shared_by * span.queries;
            A next = largest[r];
            EACH(u, UNROLL) {
                A *score = scores + (r * UNROLL + u);
                int own = (int)key + u * TEAMS + LANE / TEAM;
                *score = own < to && has_row ? masked(*score * scale, p, span, batch, head, query, own MASK_VALUES) : LOWEST;
                next = LARGER(next, *score);
            }
            A shift = next == LOWEST ? (A)0 : next, factor = largest[r] == next ? (A)1 : POWER(largest[r] - shift);
            largest[r] = next;
            total[r] *= factor;
            EACH(c, COLUMNS) sums[r * COLUMNS + c] *= factor;
            EACH(u, UNROLL) {
                scores[r * UNROLL + u] = POWER(scores[r * UNROLL + u] - shift);
                total[r] += scores[r * UNROLL + u];
            }
        }
        EACH(u, UNROLL) EACH(c, CHUNKS) {
            int is_inside = key + u * TEAMS + LANE / TEAM < to && COLUMN(c) < width;
            EACH(j, VECTOR) {
                A x = is_inside ? (A)LOAD(T, values[u * CHUNKS + c].each, j) : (A)0;
                EACH(r, ROWS) sums[r * COLUMNS + c * VECTOR + j] = fma_(scores[r * UNROLL + u], x, sums[r * COLUMNS + c * VECTOR + j]);
            }
        }
        read_rows(values, of_v, v_step, (int)key + STEP, (int)to, width);
    }
    EACH(r, ROWS) {
        if (MEMBER == 0) {
            best[r * TEAMS + LANE / TEAM] = largest[r];
            totals[r * TEAMS + LANE / TEAM] = total[r];
        }
        EACH(c, CHUNKS) EACH(j, VECTOR) columns[(r * TEAMS + LANE / TEAM) * PITCH + COLUMN(c) + j] = sums[r * COLUMNS + c * VECTOR + j];
    }
    BARRIER();
    for (int i = LANE; i < ROWS * TEAMS; i += THREADS) {
        A all = best[i / TEAMS * TEAMS];
        for (int team = 1; team < TEAMS; team++) all = LARGER(all, best[i / TEAMS * TEAMS + team]);
        factors[i] = POWER(best[i] - (all == LOWEST ? (A)0 : all));
    }
    BARRIER();
    for (int i = LANE; i < ROWS * width; i += THREADS) {
        int r = i / width, column = i - r * width;
        i64 row = block * ROWS + r, head = key_head * shared_by + row / span.queries, query = row % span.queries;
        if (row >= shared_by * span.queries) continue;
        i64 place = (batch * HEADS + head) * span.queries + query;
        A value = 0, sum = 0, all = best[r * TEAMS];
        for (int team = 0; team < TEAMS; team++) {
            value = fma_(factors[r * TEAMS + team], columns[(r * TEAMS + team) * PITCH + column], value);
            sum = fma_(factors[r * TEAMS + team], totals[r * TEAMS + team], sum);
            all = LARGER(all, best[r * TEAMS + team]);
        }
#ifdef ALONE
        STORE(T, o, RESULT_AT(batch, head, query) + column, sum == 0 ? (A)0 : value / sum);
        if (column == 0) lse[place] = sum == 0 ? LOWEST : all + log_(sum);
#else
        results[(rows * 2 + place * width) * parts + part * width + column] = value;
        if (column == 0) {
            results[(place * parts + part) * 2] = all;
            results[(place * parts + part) * 2 + 1] = sum;
        }
#endif
    }
}
#endif

#ifdef JOINED
// A group joins the parts of a row. A thread has a column, and every SLICES-th part.
KERNEL(attention_joined)(GLOBAL const A *results, GLOBAL S *o, GLOBAL A *lse, Ints p, i64 parts, i64 rows) {
    SHARED(A, factors, MOST_PARTS);
    SHARED(A, sums, THREADS);
    JOINS(1);
    i64 row = GROUP, query = row % N_QUERIES, head = row / N_QUERIES % HEADS, batch = row / N_QUERIES / HEADS;
    int width = (int)ROW_WIDTH, column = LANE % COLUMNS, slice = LANE / COLUMNS;
    GLOBAL const A *marks = results + row * parts * 2, *values = results + (rows * 2 + row * width) * parts;
    A largest = LOWEST, sum = 0, value = 0;
    for (int i = LANE; i < parts; i += THREADS) largest = LARGER(largest, marks[i * 2]);
    largest = TEAM_MAX(largest);
    A shift = largest == LOWEST ? (A)0 : largest;
    for (int i = LANE; i < parts; i += THREADS) {
        factors[i] = POWER(marks[i * 2] - shift);
        sum = fma_(factors[i], marks[i * 2 + 1], sum);
    }
    sum = TEAM_SUM(sum);
    BARRIER();
    if (column < width) {
#pragma unroll 4
        for (int i = slice; i < parts; i += SLICES) value = fma_(factors[i], values[(i64)i * width + column], value);
    }
    sums[LANE] = value;
    BARRIER();
    if (slice == 0 && column < width) {
        value = 0;
        for (int i = 0; i < SLICES; i++) value += sums[i * COLUMNS + column];
        STORE(T, o, RESULT_AT(batch, head, query) + column, sum == 0 ? (A)0 : value / sum);
    }
    if (LANE == 0) lse[row] = sum == 0 ? LOWEST : largest + log_(sum);
}
#endif

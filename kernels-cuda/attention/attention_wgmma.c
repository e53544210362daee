// Attention on Hopper's matrix units: kernels of attention.c for f16 and bf16, for rows of whole words of 16 bytes, up to 128 elements,
// and a positive scale; without a mask and dropout. Products are summed in f32; weights, and gradients of scores, are rounded to T
// before the next product. Compute capability 9.0.
//
// A group has two or three parts of four waves. Tiles in local memory are as in products.h: DIM / 64 boxes of as many lines as the tile
// has rows. Copies of later tiles run while earlier ones are multiplied.
//
// THREADS: 256 or, for the output of rows of up to 64 elements, 384
// ACC: f32
// DIM: 64 or 128, D rounded up
// OUTPUT, GRADIENTS: flag, the kernel: attention_wgmma, attention_gradients_wgmma
// T, PACKED, LENGTHS, integers: as in attention.h
// DQ_STRIDES: for gradients, strides of batches, heads and rows of dq
// TOGETHER: for gradients, heads whose groups alternate

#define KEYS_TILE 128
// Queries of a group or, for gradients, of a step, whose scores and their gradients are in registers beside sums of two gradients.
#if defined(OUTPUT)
#define QUERIES_TILE (THREADS / 2)
#elif DIM == 64
#define QUERIES_TILE 128
#else
#define QUERIES_TILE 64
#endif
#define TILE (THREADS / 2)
#include "attention/attention.h"
#include "attention/attention_rows.h"
#include "copies.h"
#include "matrix/products.h"
#include "attention/turns.h"

// Words of a row, and boxes of a tile.
#define WORDS (DIM / CHUNK)
#define BOXES (DIM / 64)
#define BYTES(rows) ((rows) * BOXES * LINE)
// A thread's part of the group, and wave of the part; in blocks of eight rows and eight columns, its row and its first column.
#define PART (LANE / 128)
#define OWN_WAVE (LANE / 32 % 4)
#define ROW (LANE % 32 / 4)
#define COLUMN (LANE % 4 * 2)

#define pack CAT(pack_, T)
#define unpack CAT(unpack_, T)

typedef union {
    u32x4 word;
    f32 each[4];
} Four;

// Starts the copies of a tile of n rows. Rows and columns that are not in memory become 0.
FUNCTION void copy_rows(LocalPlace to, Rows rows, int n, int width) {
    int row = LANE / WORDS, word = LANE % WORDS, count = word * CHUNK < width ? rows.count : 0;
    GLOBAL const S *from = rows.x + (row * rows.step + word * CHUNK);
    LocalPlace own = to + (u32)(word / 8 * n * LINE + row * LINE + (word % 8 ^ (row & 7)) * 16);
    EACH(i, (n * WORDS + THREADS - 1) / THREADS) {
        int at = i * (THREADS / WORDS), is_inside = row + at < count;
        if (n * WORDS % THREADS > 0 && row + at >= n) continue;
        copy_async(own + (u32)(at * LINE), is_inside ? from : rows.x, is_inside ? 16 : 0);
        from += THREADS / WORDS * rows.step;
    }
}

// Writes rows of sums of four waves, `factor` times, as words of 16 bytes: rows from `row` on, columns from `column` on.
FUNCTION void put_rows(GLOBAL S *to, i64 step, const f32 *sums, int columns, int row, int rows, int column, int width, f32 factor) {
    EACH(half, 2) {
        int own = row + OWN_WAVE * 16 + ROW + half * 8;
        EACH(i, columns / 32) {
            u32 words[4];
            EACH(j, 4) {
                const f32 *v = sums + ((i * 4 + j) * 4 + half * 2);
                words[j] = pack(v[0] * factor, v[1] * factor);
            }
            exchange(words);
            int at = column + i * 32 + LANE % 4 * 8;
            if (own < rows && at < width) *(GLOBAL u32x4 *)(to + (own * step + at)) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

// Rows and columns of scores: queries and keys or, for gradients, keys and queries.
#ifdef OUTPUT
#define SCORES KEYS_TILE
#define ROWS QUERIES_TILE
CAT(PRODUCT_, KEYS_TILE)(product_scores, T, 1, 1)
#else
#define SCORES QUERIES_TILE
#define ROWS KEYS_TILE
CAT(PRODUCT_, QUERIES_TILE)(product_scores, T, 1, 1)
#endif
CAT(PRODUCT_OF_REGISTERS_, DIM)(product_values, T, 0)

// s += the products of this part's 64 rows of a tile of ROWS and SCORES rows of another, or = without numbers before. Starts them.
FUNCTION void start_scores(f32 *s, LocalPlace rows, LocalPlace columns, int has_before) {
    u64 a = tile_anew(rows + PART * BOX), b = tile_anew(columns);
    BEGIN_PRODUCTS();
    EACH(d, DIM / 16) {
        u64 own = further(a, d / 4 * ROWS * LINE + d % 4 * 32), other = further(b, d / 4 * SCORES * LINE + d % 4 * 32);
        product_scores(s, own, other, has_before || d > 0);
    }
    END_GROUP_OF_PRODUCTS();
}

// sums += weights, in words of registers, times SCORES rows, in tiles of 64 if they have several boxes. Starts it.
FUNCTION void start_values(f32 *sums, const u32 *weights, LocalPlace rows) {
    u64 b = tile_anew(rows);
    BEGIN_PRODUCTS();
    EACH(n, SCORES / 16) product_values(sums, weights + n * 4, further(b, n / 4 * BYTES(64) + n % 4 * 16 * LINE), 1);
    END_GROUP_OF_PRODUCTS();
}

#ifdef OUTPUT
#define PLACE_Q tiles
#define PLACE_K(slot) (tiles + BYTES(QUERIES_TILE) + (u32)(slot) * 2 * BYTES(KEYS_TILE))
#define PLACE_V(slot) (PLACE_K(slot) + BYTES(KEYS_TILE))
#define LOCAL_BYTES (BYTES(QUERIES_TILE) + 4 * BYTES(KEYS_TILE))

// s = weights relative to the largest score of each row so far; `factors` are those of earlier weights.
FUNCTION void soften(f32 *s, f32 *largest, f32 *total, f32 *factors, f32 slope) {
    EACH(half, 2) {
        f32 next = largest[half], sum = 0;
        EACH(j, SCORES / 8) EACH(r, 2) next = LARGER(next, s[j * 4 + half * 2 + r]);
        for (int by = 1; by < 4; by *= 2) {
            f32 other = as_f32(wave_xor(as_u32(next), by));
            next = LARGER(next, other);
        }
        f32 shift = shift_of(next, slope);
        factors[half] = raise_largest(&largest[half], next, slope, shift);
        EACH(j, SCORES / 8) EACH(r, 2) {
            f32 *weight = s + (j * 4 + half * 2 + r);
            *weight = exp2_near_(fma_(*weight, slope, -shift));
            sum += *weight;
        }
        total[half] = fma_(total[half], factors[half], sum);
    }
}

// The weights of a tile of keys, and their products with values. Keys are copied a step ahead of values: scores of the next keys are
// computed while values are multiplied.
KERNEL(attention_wgmma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL S *o, GLOBAL A *lse, Ints p,
                        A scale SPAN_ARGUMENTS STATUS_ARGUMENTS) {
    CHECK_ENDS();
    SHARED_GIVEN(u8, given, LOCAL_BYTES + 1024);
    LocalPlace tiles = (local_place(given) + 1023) & ~(LocalPlace)1023;
    TILE_OF_QUERIES(QUERIES_TILE);
    f32 slope = scale * LOG2E;

    f32 sums[SUMS_OF(DIM)], largest[2], total[2];
    EACH(i, SUMS_OF(DIM)) sums[i] = 0;
    EACH(half, 2) {
        largest[half] = LOWEST;
        total[half] = 0;
    }
    if (key < end) {
#define COPY_KEYS(slot, from) \
    copy_rows(PLACE_K(slot), ROWS_OF(k, KEY_STRIDES, batch, key_head, span.key + (from), last_key), KEYS_TILE, width)
#define COPY_VALUES(slot, from) \
    EACH(i, 2) \
    copy_rows(PLACE_V(slot) + i * BYTES(64), ROWS_OF(v, VALUE_STRIDES, batch, key_head, span.key + (from) + i * 64, last_key), 64, width)
#define MASK_SCORES() \
    if (!is_whole(span, query, QUERIES_TILE, key, KEYS_TILE)) { \
        EACH(i, SUMS_OF(SCORES)) { \
            int own_query = query + PART * 64 + OWN_WAVE * 16 + ROW + i / 2 % 2 * 8, own_key = key + i / 4 * 8 + COLUMN + i % 2; \
            s[i] = masked(s[i], p, span, batch, head, own_query, own_key); \
        } \
    }
        copy_rows(PLACE_Q, of_q, QUERIES_TILE, width);
        COPY_KEYS(0, key);
        end_group_of_copies();
        wait_for_copies(0);
        SHOW_TO_UNITS();
        BARRIER();
        if (key + KEYS_TILE < end) COPY_KEYS(1, key + KEYS_TILE);
        COPY_VALUES(0, key);
        end_group_of_copies();
        f32 s[SUMS_OF(SCORES)], factors[2];
        u32 weights[SUMS_OF(SCORES) / 2];
        start_scores(s, PLACE_Q, PLACE_K(0), 0);
        WAIT_FOR_PRODUCTS(0);
        MASK_SCORES();
        soften(s, largest, total, factors, slope);
        EACH(i, SUMS_OF(SCORES) / 2) weights[i] = pack(s[2 * i], s[2 * i + 1]);
        int slot = 0;
        for (key += KEYS_TILE; key < end; key += KEYS_TILE) {
            // These keys and the values before are complete, and those before them have been read.
            wait_for_copies(0);
            SHOW_TO_UNITS();
            BARRIER();
            if (key + KEYS_TILE < end) COPY_KEYS(slot, key + KEYS_TILE);
            COPY_VALUES(slot ^ 1, key);
            end_group_of_copies();
            start_scores(s, PLACE_Q, PLACE_K(slot ^ 1), 0);
            start_values(sums, weights, PLACE_V(slot));
            slot ^= 1;
            WAIT_FOR_PRODUCTS(1);
            MASK_SCORES();
            soften(s, largest, total, factors, slope);
            WAIT_FOR_PRODUCTS(0);
            EACH(i, SUMS_OF(DIM)) sums[i] *= factors[i / 2 % 2];
            EACH(i, SUMS_OF(SCORES) / 2) weights[i] = pack(s[2 * i], s[2 * i + 1]);
        }
        wait_for_copies(0);
        SHOW_TO_UNITS();
        BARRIER();
        start_values(sums, weights, PLACE_V(slot));
        WAIT_FOR_PRODUCTS(0);
    }
    i64 row = (batch * heads + head) * N_QUERIES + first;
    EACH(half, 2) {
        for (int by = 1; by < 4; by *= 2) {
            f32 other = as_f32(wave_xor(as_u32(total[half]), by));
            total[half] += other;
        }
        int is_empty = total[half] == 0, own = PART * 64 + OWN_WAVE * 16 + ROW + half * 8;
        f32 share = is_empty ? 1.0f : 1.0f / total[half];
        EACH(i, SUMS_OF(DIM) / 2) sums[i / 2 * 4 + half * 2 + i % 2] *= share;
        if (LANE % 4 == 0 && own < of_q.count) lse[row + own] = log_of_sum(largest[half], total[half], slope);
    }
    put_rows(o + RESULT_AT(batch, head, first), RESULT_STRIDES(2), sums, DIM, PART * 64, of_q.count, 0, width, 1);
}
#endif

#ifdef GRADIENTS
// Tiles in local memory: of queries, of dy and numbers of queries, and of gradients of scores. A step has the place of its number
// modulo these.
#define TILES_Q 3
#define TILES_DY 3
#define TILES_DS 2
// Copies run so many steps ahead.
#define AHEAD 2
#define DS_BYTES (KEYS_TILE * QUERIES_TILE * 2)
#define PLACE_K tiles
#define PLACE_V (PLACE_K + BYTES(KEYS_TILE))
#define PLACE_Q(step) (PLACE_V + BYTES(KEYS_TILE) + (u32)((step) % TILES_Q) * BYTES(QUERIES_TILE))
#define PLACE_DY(step) (PLACE_V + BYTES(KEYS_TILE) + (u32)(TILES_Q + (step) % TILES_DY) * BYTES(QUERIES_TILE))
#define DS_AT(step) (2 * BYTES(KEYS_TILE) + (TILES_Q + TILES_DY) * BYTES(QUERIES_TILE) + (step) % TILES_DS * DS_BYTES)
// Logarithms of queries, then sums.
#define NUMBERS_AT(step) (DS_AT(0) + TILES_DS * DS_BYTES + (step) % TILES_DY * 2 * QUERIES_TILE * 4)
#define LOCAL_BYTES (NUMBERS_AT(0) + TILES_DY * 2 * QUERIES_TILE * 4)

CAT(PRODUCT_, DIM)(product_keys, T, 1, 0)
PRODUCT_64(product_queries, T, 0, 0)

// sums += this part's rows of gradients of scores times the rows of a tile of queries. Starts it.
FUNCTION void start_keys(f32 *sums, LocalPlace ds, LocalPlace queries) {
    u64 a = tile_anew(ds + PART * BOX), b = tile_anew(queries);
    BEGIN_PRODUCTS();
    EACH(n, QUERIES_TILE / 16) product_keys(sums, further(a, n / 4 * KEYS_TILE * LINE + n % 4 * 32), further(b, n * 16 * LINE), 1);
    END_GROUP_OF_PRODUCTS();
}

// sums = this part of the gradient of a tile of queries: half of the rows, or half of the columns. Starts it.
FUNCTION void start_queries(f32 *sums, LocalPlace ds, LocalPlace keys) {
    u64 a = tile_anew(ds + (QUERIES_TILE == 128 ? PART * KEYS_TILE * LINE : 0));
    u64 b = tile_anew(keys + (QUERIES_TILE == 128 ? 0 : PART * KEYS_TILE * LINE));
    BEGIN_PRODUCTS();
    EACH(n, KEYS_TILE / 16) product_queries(sums, further(a, n * 16 * LINE), further(b, n * 16 * LINE), n > 0);
    END_GROUP_OF_PRODUCTS();
}

// A tile of queries of one of the heads that share keys.
typedef struct {
    int head, tile;
} Place;

// Numbers of the queries of a tile, for the columns of a thread: those of two blocks of eight columns are four in a row.
#define NUMBER_AT(query) ((query) / 16 * 16 + (query) % 8 / 2 * 4 + (query) / 8 % 2 * 2 + (query) % 2)

FUNCTION Four numbers_of(LOCAL const f32 *numbers, int two_blocks) {
    Four four;
    four.word = *(LOCAL const u32x4 *)(numbers + (LANE % 4 * 4) + two_blocks * 16);
    return four;
}

// sums = the numbers of their columns, which products are added to.
FUNCTION void begin_with(f32 *sums, LOCAL const f32 *numbers) {
    EACH(j, QUERIES_TILE / 16) {
        Four four = numbers_of(numbers, j);
        EACH(i, 8) sums[j * 8 + i] = four.each[i / 4 * 2 + i % 2];
    }
}

// The weights of a tile's scores, in words. `shifts`: -log2 of the sums of the queries' exponentials.
FUNCTION void weigh(u32 *weights, f32 *s, LOCAL const f32 *shifts, f32 slope, Ints p, Span span, int query, int key) {
    if (!is_whole(span, query, QUERIES_TILE, key, KEYS_TILE)) {
        EACH(i, SUMS_OF(QUERIES_TILE)) {
            int own_query = query + i / 4 * 8 + COLUMN + i % 2, own_key = key + PART * 64 + OWN_WAVE * 16 + ROW + i / 2 % 2 * 8;
            s[i] = masked(s[i], p, span, 0, 0, own_query, own_key);
        }
    }
    EACH(j, QUERIES_TILE / 16) {
        Four shift = numbers_of(shifts, j);
        EACH(i, 8) s[j * 8 + i] = exp2_near_(fma_(s[j * 8 + i], slope, shift.each[i / 4 * 2 + i % 2]));
        EACH(i, 4) weights[j * 4 + i] = pack(s[j * 8 + i * 2], s[j * 8 + i * 2 + 1]);
    }
}

// Writes the gradients of scores, weights times gradients of weights, to this part's lines of local memory.
FUNCTION void put_gradients(LOCAL u8 *to, const u32 *weights, const f32 *dp) {
    LOCAL u8 *own = to + (PART * 64 + OWN_WAVE * 16 + ROW) * LINE + COLUMN * 2;
    EACH(j, QUERIES_TILE / 8) EACH(half, 2) {
        f32 w[2];
        unpack(w, weights[j * 2 + half]);
        EACH(r, 2) w[r] *= dp[j * 4 + half * 2 + r];
        *(LOCAL u32 *)(own + j / 8 * (KEYS_TILE * LINE) + half * 8 * LINE + (j % 8 ^ ROW) * 16) = pack(w[0], w[1]);
    }
}

// The turn of a tile of keys to add to the gradient of a tile of queries: the number of its counter, the counter as it was read early, and
// the numbers of this turn and the last.
typedef struct {
    u32 counter, ended, number, last;
} Turn;

FUNCTION Turn turn_of(GLOBAL const u32 *counters, u32 counter, Span span, int query, int tile) {
    Turn turn;
    int from = query + span.low, to = query + QUERIES_TILE - 1 + span.high;
    int first = from > 0 ? from / KEYS_TILE : 0, last = (to < span.keys ? to : span.keys - 1) / KEYS_TILE;
    turn.counter = counter;
    turn.ended = seen_u32(counters + counter);
    turn.number = (u32)(last - tile);
    turn.last = (u32)(last - first);
    return turn;
}

// Adds to the sums of a tile of queries, or writes the gradient if this is the last turn.
FUNCTION void add_queries(Turn turn, GLOBAL const u32 *counters, f32 *own, GLOBAL f32 *sums, GLOBAL S *dq, i64 step, int queries, int width,
                          f32 scale) {
    await_turn(counters + turn.counter, turn.ended, turn.number);
    GLOBAL f32 *shared = sums + ((i64)turn.counter * (QUERIES_TILE * DIM) + PART * 4096 + LANE % 128 * 4);
    if (turn.number == turn.last) {
        if (turn.number > 0) {
            see_all(counters + turn.counter);
            EACH(j, 8) {
                Four four;
                four.word = seen_u32x4((GLOBAL const u32x4 *)(shared + j * 512));
                EACH(i, 4) own[j * 4 + i] += four.each[i];
            }
        }
        put_rows(dq, step, own, 64, QUERIES_TILE == 128 ? PART * 64 : 0, queries, QUERIES_TILE == 128 ? 0 : PART * 64, width, scale);
    } else if (turn.number == 0) {
        EACH(j, 8) put_four(shared + j * 512, own + j * 4);
    } else {
        EACH(j, 8) add_four(shared + j * 512, own + j * 4);
    }
}

// All gradients, for a tile of keys: sums over the heads of queries that share them, and over queries, to whose gradients it adds. Rows of
// scores are keys.
//
// Groups of a head's tiles of keys start in descending order, and add in this order. If queries attend to the keys up to their own, a tile
// begins with its first queries, which the tile before it has finished: no group waits. If they attend to all keys, a group waits at first,
// and follows the one before it from then on. Groups of several heads alternate, so that those of a head start apart. The last one to
// add writes dq. Every query attends to some key.
//
// `sums`: scratch, f32 of each tile of queries in the order of threads. `counters`: turns of each tile of queries.
KERNEL(attention_gradients_wgmma)(GLOBAL const S *q, GLOBAL const S *k, GLOBAL const S *v, GLOBAL const S *dy, GLOBAL const A *lse,
                                  GLOBAL const A *delta, GLOBAL S *dq, GLOBAL S *dk, GLOBAL S *dv, GLOBAL f32 *sums, GLOBAL u32 *counters,
                                  Ints p, A scale) {
    SHARED_GIVEN(u8, given, LOCAL_BYTES + 1024);
    LocalPlace tiles = (local_place(given) + 1023) & ~(LocalPlace)1023;
    LOCAL u8 *local = given + (tiles - local_place(given));
    int width = (int)ROW_WIDTH, n_tiles = (int)TILES;
    i64 heads = HEADS, key_heads = heads / SHARED_BY, first_head = GROUP / (TOGETHER * n_tiles) * TOGETHER;
    i64 left = GROUPS / n_tiles - first_head;
    i64 together = left < TOGETHER ? left : TOGETHER, within = GROUP - first_head * n_tiles, own_head = first_head + within % together;
    i64 key_head = own_head % key_heads, batch = own_head / key_heads;
    int tile = n_tiles - 1 - (int)(within / together);
    Span span = span_of(p, batch, 0, 1);
    int key = tile * KEYS_TILE, all_queries = (span.queries + QUERIES_TILE - 1) / QUERIES_TILE;
    Rows of_k = ROWS_OF(k, KEY_STRIDES, batch, key_head, key, span.keys);
    int start = key - span.high > 0 ? (key - span.high) / QUERIES_TILE : 0;
    int end = (end_of_queries(span, key, of_k.count) + QUERIES_TILE - 1) / QUERIES_TILE;
    int steps = end > start ? (end - start) * (int)SHARED_BY : 0;
    f32 slope = scale * LOG2E;

    f32 sums_k[SUMS_OF(DIM)], sums_v[SUMS_OF(DIM)];
    EACH(i, SUMS_OF(DIM)) sums_k[i] = sums_v[i] = 0;

#define NEXT(place) \
    if (++(place).tile == end) { \
        (place).tile = start; \
        (place).head++; \
    }
    // The tile of queries that is copied next, and that of a step.
    Place copied = {(int)(key_head * SHARED_BY), start}, at = copied;
    // A thread reads a number of a query of the tile: its logarithm, or its sum of dy o. Weights are 0 for queries that are not there, and
    // for those without keys.
#define READ_NUMBER() \
    { \
        int own = copied.tile * QUERIES_TILE + LANE % QUERIES_TILE; \
        i64 at_row = (batch * heads + copied.head) * N_QUERIES + own; \
        number = LANE < QUERIES_TILE ? LOWEST : 0; \
        if (LANE < 2 * QUERIES_TILE && own < span.queries) number = LANE < QUERIES_TILE ? lse[at_row] : delta[at_row]; \
    }
#define KEEP_NUMBER(step) \
    if (LANE < QUERIES_TILE) number = number == LOWEST ? LOWEST : number * -LOG2E; \
    else number = -number; \
    if (LANE < 2 * QUERIES_TILE) ((LOCAL f32 *)(local + NUMBERS_AT(step)))[NUMBER_AT(LANE)] = number
#define COPY_QUERIES(step) \
    { \
        int from = copied.tile * QUERIES_TILE; \
        copy_rows(PLACE_Q(step), ROWS_OF(q, QUERY_STRIDES, batch, copied.head, from, span.queries), QUERIES_TILE, width); \
        copy_rows(PLACE_DY(step), ROWS_OF(dy, DY_STRIDES, batch, copied.head, from, span.queries), QUERIES_TILE, width); \
        NEXT(copied); \
    }
#define NUMBERS(step) ((LOCAL const f32 *)(local + NUMBERS_AT(step)))

    f32 s[SUMS_OF(QUERIES_TILE)], dp[SUMS_OF(QUERIES_TILE)], number;
    u32 weights[SUMS_OF(QUERIES_TILE) / 2];
    i64 row = RESULT_AT(batch, key_head, key);
    if (steps <= 0) {
        put_rows(dk + row, RESULT_STRIDES(2), sums_k, DIM, PART * 64, of_k.count, 0, width, 0);
        put_rows(dv + row, RESULT_STRIDES(2), sums_v, DIM, PART * 64, of_k.count, 0, width, 0);
        return;
    }
    copy_rows(PLACE_K, of_k, KEYS_TILE, width);
    copy_rows(PLACE_V, ROWS_OF(v, VALUE_STRIDES, batch, key_head, key, span.keys), KEYS_TILE, width);
    for (int i = 0; i < AHEAD; i++) {
        if (i < steps) {
            READ_NUMBER();
            KEEP_NUMBER(i);
            COPY_QUERIES(i);
        }
        end_group_of_copies();
    }
    wait_for_copies(AHEAD - 1);
    SHOW_TO_UNITS();
    BARRIER();
    start_scores(s, PLACE_K, PLACE_Q(0), 0);
    WAIT_FOR_PRODUCTS(0);
    weigh(weights, s, NUMBERS(0), slope, p, span, at.tile * QUERIES_TILE, key);
    begin_with(dp, NUMBERS(0) + QUERIES_TILE);
    start_scores(dp, PLACE_V, PLACE_DY(0), 1);
    start_values(sums_v, weights, PLACE_DY(0));
    u32 before = 0, turn_before = 0;
    for (int step = 0;; step++) {
        int query = at.tile * QUERIES_TILE, next = step + 1;
        Turn turn = turn_of(counters, (u32)(batch * heads + at.head) * (u32)all_queries + (u32)at.tile, span, query, tile);
        WAIT_FOR_PRODUCTS(1);
        put_gradients(local + DS_AT(step), weights, dp);
        // All threads have written their gradients of scores, the next tile is complete, and the tile before this one has been read.
        wait_for_copies(0);
        SHOW_TO_UNITS();
        BARRIER();
        int copies = step + AHEAD < steps;
        if (copies) {
            READ_NUMBER();
            COPY_QUERIES(step + AHEAD);
        }
        end_group_of_copies();
        f32 sums_q[SUMS_OF(64)];
        GLOBAL S *own_dq = dq + (batch * DQ_STRIDES(0) + at.head * DQ_STRIDES(1) + query * DQ_STRIDES(2));
        if (next == steps) {
            start_keys(sums_k, tiles + DS_AT(step), PLACE_Q(step));
            start_queries(sums_q, tiles + DS_AT(step), PLACE_K);
            if (step > 0) end_turn(counters + before, turn_before);
            WAIT_FOR_PRODUCTS(0);
            add_queries(turn, counters, sums_q, sums, own_dq, DQ_STRIDES(2), span.queries - query, width, scale);
            BARRIER();
            end_turn(counters + turn.counter, turn.number);
            break;
        }
        start_scores(s, PLACE_K, PLACE_Q(next), 0);
        start_keys(sums_k, tiles + DS_AT(step), PLACE_Q(step));
        start_queries(sums_q, tiles + DS_AT(step), PLACE_K);
        // The additions of the turn before have ended in the meantime.
        if (step > 0) end_turn(counters + before, turn_before);
        before = turn.counter;
        turn_before = turn.number;
        NEXT(at);
        WAIT_FOR_PRODUCTS(2);
        weigh(weights, s, NUMBERS(next), slope, p, span, at.tile * QUERIES_TILE, key);
        begin_with(dp, NUMBERS(next) + QUERIES_TILE);
        WAIT_FOR_PRODUCTS(0);
        start_scores(dp, PLACE_V, PLACE_DY(next), 1);
        start_values(sums_v, weights, PLACE_DY(next));
        add_queries(turn, counters, sums_q, sums, own_dq, DQ_STRIDES(2), span.queries - query, width, scale);
        if (copies) {
            KEEP_NUMBER(step + AHEAD);
        }
    }
    put_rows(dk + row, RESULT_STRIDES(2), sums_k, DIM, PART * 64, of_k.count, 0, width, scale);
    put_rows(dv + row, RESULT_STRIDES(2), sums_v, DIM, PART * 64, of_k.count, 0, width, 1);
}
#endif

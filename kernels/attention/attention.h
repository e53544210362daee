// Shared by the kernels of attention: the operands, the mask, and the draws of dropout.
//
// T: f16, bf16 or f32, dtype of q, k, v, o and their gradients
// MASK: bool (false excludes a key), or the dtype of floats that are added to scores; not defined without a mask
// ADDS_MASK: flag, the mask has floats
// DROPOUT: flag, weights are multiplied by 0 or `kept`
// BASE: flag, numbers in memory are added to the generator's state
// TILE: rows that are copied together, at most
// PACKED: flag, a batch is N sequences one after the other: `q_starts` and `k_starts` have the first rows of each, and the end of the last
// LENGTHS: flag, `lengths` has the number of keys of each of N batches
//
// N_QUERIES, N_KEYS, ROW_WIDTH, HEADS, SHARED_BY: Tq, Tk, D, Hq and Hq / Hk
// TILES: tiles of a head
// BAND_LOW, BAND_HIGH: query i attends to keys from i + low to i + high; with PACKED and LENGTHS, relative to its own position
// SEQUENCES: N
// FROM_END: 1 if i counts from the end of a sequence
// QUERY_STRIDES, KEY_STRIDES, VALUE_STRIDES, DY_STRIDES: strides of batches, heads and rows of q, k, v and dy
// MASK_STRIDES: strides of batches, heads, queries and keys of the mask
// RESULT_STRIDES: strides of batches, heads and rows of the results, or of o

#include "random/philox.h"

typedef STORAGE(T) S;

#define LOG2E 1.44269504f
#define LN2 0.693147181f

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

// Rows of a factor: the first, the distance between them, and their number in memory.
typedef struct {
    GLOBAL const S *x;
    i64 step;
    int count;
} Rows;

FUNCTION Rows rows_of(GLOBAL const S *x, const i64 *strides, i64 batch, i64 head, int row, int end) {
    Rows rows;
    rows.step = strides[2];
    rows.x = x + (batch * strides[0] + head * strides[1] + row * rows.step);
    rows.count = end - row < TILE ? end - row : TILE;
    return rows;
}

// By the name of their strides. As numbers instead of a pointer, these take more registers: the compiler sums them up before loops.
#define ROWS_OF(x, STRIDES, batch, head, row, end) rows_of(x, &STRIDES(0), batch, head, row, end)

// Where a row of a result begins.
#define RESULT_AT(batch, head, row) \
    ((batch) * RESULT_STRIDES(0) + (head) * RESULT_STRIDES(1) + (row) * RESULT_STRIDES(2))

// The sequence of a group: its first query and key, the numbers of its queries and keys, and the keys from i + low to i + high that its query
// i attends to.
typedef struct {
    int query, queries, key, keys, low, high;
} Span;

#ifdef PACKED
#define SPAN_ARGUMENTS , GLOBAL const i64 *q_starts, GLOBAL const i64 *k_starts
#define SPAN_VALUES , q_starts, k_starts
#define STATUS_ARGUMENTS , GLOBAL i64 *q_status, GLOBAL i64 *k_status

// The first row of span i: rows before all sequences, the sequences, and rows after them.
FUNCTION int span_start(GLOBAL const i64 *starts, int n, int rows, int i) {
    i64 start = i == 0 ? 0 : i == n + 2 ? rows : starts[i - 1];
    return (int)(start < 0 ? 0 : start > rows ? rows : start);
}
#elif defined(LENGTHS)
#define SPAN_ARGUMENTS , GLOBAL const i64 *lengths
#define SPAN_VALUES , lengths
#define STATUS_ARGUMENTS , GLOBAL i64 *status
#else
#define SPAN_ARGUMENTS
#define SPAN_VALUES
#define STATUS_ARGUMENTS
#endif

// The span of a tile of queries, or of keys. The tile is then counted in it. Span i of packed rows begins with tile start / TILE + i, so that
// no two spans share a tile; the last tiles of a span may have no rows.
FUNCTION Span span_of(Ints p, i64 batch, i64 *tile, int by_keys SPAN_ARGUMENTS) {
    Span s;
    s.query = s.key = 0;
    s.queries = (int)N_QUERIES;
    s.keys = (int)N_KEYS;
    s.low = (int)BAND_LOW;
    s.high = (int)BAND_HIGH;
#ifdef PACKED
    GLOBAL const i64 *own = by_keys ? k_starts : q_starts, *other = by_keys ? q_starts : k_starts;
    int n = (int)SEQUENCES, rows = by_keys ? s.keys : s.queries, others = by_keys ? s.queries : s.keys, span = 0, end = n + 2;
    while (end - span > 1) {
        int middle = (span + end) / 2;
        if (span_start(own, n, rows, middle) / TILE + middle <= *tile) span = middle;
        else end = middle;
    }
    int first = span_start(own, n, rows, span), count = span_start(own, n, rows, span + 1) - first;
    int is_sequence = span > 0 && span <= n, other_first = is_sequence ? span_start(other, n, others, span) : 0;
    int other_count = is_sequence ? span_start(other, n, others, span + 1) - other_first : 0;
    *tile -= first / TILE + span;
    s.query = by_keys ? other_first : first;
    s.queries = by_keys ? other_count : count;
    s.key = by_keys ? first : other_first;
    s.keys = by_keys ? count : other_count;
#elif defined(LENGTHS)
    if (lengths[batch] < s.keys) s.keys = lengths[batch] < 0 ? 0 : (int)lengths[batch];
#endif
#if defined(PACKED) || defined(LENGTHS)
    int last = FROM_END ? s.keys - s.queries : 0;
    s.low += last;
    s.high += last;
#endif
    return s;
}

// The end of the keys to which some of `count` queries from `query` on attend.
FUNCTION int end_of_keys(Span span, int query, int count) {
    int end = query + count + span.high;
#ifdef PACKED
    if (count <= 0) return 0;
#endif
    return end < span.keys ? end : span.keys;
}

// The end of the queries that attend to some of `count` keys from `key` on.
FUNCTION int end_of_queries(Span span, int key, int count) {
    int end = key + count - span.low;
#if defined(PACKED) || defined(LENGTHS)
    if (count <= 0) return 0;
#endif
    return end < span.queries ? end : span.queries;
}

// The tile of queries of a group, those with the most keys first, and the keys from `key` to `end` that some of them attend to.
#define TILE_OF_QUERIES(n_rows) \
    int width = (int)ROW_WIDTH; \
    i64 heads = HEADS, n_tiles = TILES, tile = n_tiles - 1 - GROUP % n_tiles, head = GROUP / n_tiles % heads; \
    i64 batch = GROUP / n_tiles / heads, key_head = head / SHARED_BY; \
    Span span = span_of(p, batch, &tile, 0 SPAN_VALUES); \
    int query = (int)tile * (n_rows), first = span.query + query, last_key = span.key + span.keys; \
    Rows of_q = ROWS_OF(q, QUERY_STRIDES, batch, head, first, span.query + span.queries); \
    int key = query + span.low > 0 ? query + span.low : 0, end = end_of_keys(span, query, of_q.count)

// The tile of keys of a group, and the queries from `start` to `end` that attend to some of them.
#define TILE_OF_KEYS() \
    int width = (int)ROW_WIDTH; \
    i64 heads = HEADS / SHARED_BY, n_tiles = TILES, tile = GROUP % n_tiles, key_head = GROUP / n_tiles % heads; \
    i64 batch = GROUP / n_tiles / heads; \
    Span span = span_of(p, batch, &tile, 1 SPAN_VALUES); \
    int key = (int)tile * TILE, first = span.key + key, last_key = span.key + span.keys; \
    Rows of_k = ROWS_OF(k, KEY_STRIDES, batch, key_head, first, last_key); \
    int start = key - span.high > 0 ? key - span.high : 0, end = end_of_queries(span, key, of_k.count); \
    int written = written_keys(p, first, of_k.count)

// The number of keys in a tile from row `first` on whose gradients are written: `count`, and keys behind the last, whose gradients are 0.
FUNCTION int written_keys(Ints p, int first, int count) {
#ifdef LENGTHS
    count = (int)N_KEYS - first < TILE ? (int)N_KEYS - first : TILE;
#endif
    return count;
}

#if defined(PACKED) || defined(LENGTHS)
// Reports numbers outside of 0 to `most` and, of sequences, those below the one before.
FUNCTION void check_ends(GLOBAL const i64 *ends, i64 n, i64 most, GLOBAL i64 *to) {
    for (i64 i = LANE; i < n; i += THREADS) {
        i64 least = 0;
#ifdef PACKED
        if (i > 0 && ends[i - 1] > 0) least = ends[i - 1];
#endif
        if (ends[i] < least || ends[i] > most) note(to, i, ends[i]);
    }
}
#endif

// The first group checks the numbers.
#ifdef PACKED
#define CHECK_ENDS() \
    if (GROUP == 0) { \
        check_ends(q_starts, SEQUENCES + 1, N_QUERIES, q_status); \
        check_ends(k_starts, SEQUENCES + 1, N_KEYS, k_status); \
    }
#elif defined(LENGTHS)
#define CHECK_ENDS() \
    if (GROUP == 0) check_ends(lengths, SEQUENCES, N_KEYS, status)
#else
#define CHECK_ENDS() ((void)0)
#endif

#ifdef MASK
typedef STORAGE(MASK) M;
#define MASK_ARGUMENTS , GLOBAL const M *mask
#define MASK_VALUES , mask
#else
#define MASK_ARGUMENTS
#define MASK_VALUES
#endif

// A score: -infinity for a query or key of the span that is not there, and for a masked key.
FUNCTION A masked(A score, Ints p, Span span, i64 batch, i64 head, int query, int key MASK_ARGUMENTS) {
    int distance = key - query;
    if (query >= span.queries || key >= span.keys || distance < span.low || distance > span.high) return LOWEST;
#ifdef MASK
    i64 at = batch * MASK_STRIDES(0) + head * MASK_STRIDES(1);
    at += (i64)(span.query + query) * MASK_STRIDES(2) + (i64)(span.key + key) * MASK_STRIDES(3);
#ifdef ADDS_MASK
    score += (A)LOAD(MASK, mask, at);
#else
    if (!mask[at]) return LOWEST;
#endif
#endif
    return score;
}

// 1 if all keys of a tile are there, and all queries of the other tile attend to them. Results of queries that are not there are not
// written, and their weights in sums are 0.
FUNCTION int is_whole(Span span, int query, int n_queries, int key, int n_keys) {
#ifdef MASK
    return 0;
#else
    int first = key - (query + n_queries - 1), last = key + n_keys - 1 - query;
    return key + n_keys <= span.keys && first >= span.low && last <= span.high;
#endif
}

#ifdef DROPOUT
#define DROPOUT_ARGUMENTS , GLOBAL const i64 *base, i64 seed, i64 offset, i64 stream, i64 threshold, A kept
#define DROPOUT_VALUES , base, seed, offset, stream, threshold, kept

// The factors of the weights of a query and four adjacent keys, `step` apart in v.
FUNCTION void factors(A *v, int step, i64 element DROPOUT_ARGUMENTS) {
    u64 block = (u64)offset + (u64)(element >> 2);
    u32 draws[8], last = (u32)(threshold - 1);
    Draws first = draws_of(base, block, seed, stream), second = draws_of(base, block + 1, seed, stream);
    EACH(i, 4) {
        draws[i] = first.v[i];
        draws[i + 4] = second.v[i];
    }
    if (element & 1) EACH(i, 7) draws[i] = draws[i + 1];
    if (element & 2) EACH(i, 6) draws[i] = draws[i + 2];
    EACH(i, 4) v[i * step] = draws[i] <= last ? kept : (A)0;
}

// 1 if a weight is kept, 0 if not, where sums are multiplied by `kept`, in f32: rounded with a weight, it would be another factor.
FUNCTION f32 is_kept(i64 element DROPOUT_ARGUMENTS) {
    Draws draws = draws_of(base, (u64)offset + (u64)(element >> 2), seed, stream);
    u32 low = element & 1 ? draws.v[1] : draws.v[0], high = element & 1 ? draws.v[3] : draws.v[2];
    return (element & 2 ? high : low) <= (u32)(threshold - 1) ? 1.0f : 0.0f;
}
#define FACTOR kept
#else
#define DROPOUT_ARGUMENTS
#define DROPOUT_VALUES
#define FACTOR 1.0f
#endif

// The number in the score matrix of a query and a key of the span.
#define ELEMENT(own_query, own_key) \
    (((batch * HEADS + head) * N_QUERIES + (span.query + (own_query))) * N_KEYS + (span.key + (own_key)))

#ifdef VECTOR
typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Word;
#endif

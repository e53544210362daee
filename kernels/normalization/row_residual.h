// Rows that are sums of x and a residual. The rounded sum is written to `stream` and normalised. row_plain.h lists the names.

#define ROW_ARGUMENTS GLOBAL const S *residual, GLOBAL S *stream,
typedef struct {
    GLOBAL const SL *x;
    GLOBAL const S *residual;
    GLOBAL S *stream;
    int is_there;
} Source;
#define SOURCE_OF_ROW(x, at, is_there) sum_of(x, residual, stream, is_there)

FUNCTION Source sum_of(GLOBAL const SL *x, GLOBAL const S *residual, GLOBAL S *stream, int is_there) {
    Source from;
    from.x = x;
    from.residual = residual;
    from.stream = stream;
    from.is_there = is_there;
    return from;
}

// Adds a word of x to a word of the residual, rounds the sum, and writes it.
FUNCTION void add_word(Read *r, Low part, Source from, Row at, idx w) {
    Read sum;
    EACH_ELEMENT(j) STORE(T, sum.each, j, LOW_AT(part.each, j) + (A)LOAD(T, r->each, j));
    if (from.is_there && w < at.words) *(GLOBAL WORD *)(from.stream + (at.first + POSITION(at, w, 0))) = sum.all;
    SET_WORD((*r), sum.all);
}

FUNCTION void first_kept(A v[][VECTOR], Source from, Row at) {
    Read kept[PER];
    Low parts[PER];
    read_kept_low(parts, from.x, at);
    read_kept(kept, from.residual, at);
    EACH_KEPT(turn) {
        add_word(&kept[turn], parts[turn], from, at, KEPT_WORD(turn));
        numbers_of(v[turn], kept[turn], IS_KEPT(at, turn), 0);
    }
}

FUNCTION void first_batch(Read *r, Source from, Row at, idx b) {
    Low parts[BATCH];
    read_batch(r, from.residual, at, b);
    read_batch_low(parts, from.x, at, b);
    EACH_OF_BATCH(u) add_word(&r[u], parts[u], from, at, BATCH_WORD(b, u));
}

FUNCTION A first_edge(Source from, Row at) {
    if (at.edge < 0) return 0;
    S sum[1];
    STORE(T, sum, 0, LOW_AT(from.x, at.first + at.edge) + (A)LOAD(T, from.residual, at.first + at.edge));
    if (from.is_there) from.stream[at.first + at.edge] = sum[0];
    return (A)LOAD(T, sum, 0);
}

// The sum. A team without a row has not written it; its results are not used.
FUNCTION GLOBAL const S *row_again(Source from) {
    GLOBAL const S *again = from.is_there ? from.stream : from.residual;
    GLOBAL_BARRIER();
    return again;
}

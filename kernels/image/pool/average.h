// The average of a window.

#define BLANK ((A)0)
#define POOL_COLUMNS \
    KERNEL(avg_pool_columns)(GLOBAL const S *x, GLOBAL S *y, Ints p, i64 count, A divisor)
#define POOL_SHARED \
    KERNEL(avg_pool_shared)(GLOBAL const S *x, GLOBAL S *y, Ints p, i64 count, A divisor)
#define WRITE_INDEX(at, position) ((void)0)
#define NUMBER(at, kd, kh, kw) 0
#define NUMBER_ELEMENT(part, at, j) ((void)0)

// A product replaces the division, which takes longer than reading 16-bit elements. In 16 bits the difference does not show.
FUNCTION void divide(A *sum, A divisor) {
    A inverse = (A)1 / divisor;
    EACH_OF_STRIP(j) sum[j] = sizeof(S) == 2 ? sum[j] * inverse : sum[j] / divisor;
}

// The number of elements of a sum along a dimension, without CONSTANT.
FUNCTION idx terms(idx begin, idx length, idx l, int p) {
    idx end = IS_SET(INCLUDE_PAD) ? l + p : l;
    if (!IS_SET(INCLUDE_PAD) && begin < 0) length += begin, begin = 0;
    return begin + length < end ? length : end - begin;
}
#define TERMS(q, X) (IS_SET(ADAPTIVE) ? LENGTH(q, X) : terms(BEGIN(q, X), LENGTH(q, X), IN_##X, P##X))

// Divides the sums of the windows from `column` on.
#define DIVIDE(sums, at, column) \
    if (IS_SET(CONSTANT)) { \
        divide(sums, divisor); \
    } else { \
        EACH_OF_STRIP(j) { \
            idx n = TERMS((at).z, D) * TERMS((at).y, H); \
            (sums)[j] /= (A)(n * TERMS((column) + j, W)); \
        } \
    }
#define DIVIDE_BY(sum, n) sum = (sum) / (A)(n)

typedef struct {
    A v;
} Part;

FUNCTION Part blank_part(void) {
    Part part;
    part.v = BLANK;
    return part;
}

FUNCTION Part joined(Part a, Part b) {
    a.v += b.v;
    return a;
}

// Added in blocks, which keeps the errors of long sums small.
#define TAKE_BATCH(own, v, number) \
    _Pragma("unroll") for (int u = 1; u < BATCH; u++) v[0] += v[u]; \
    own.v += v[0]
#define TAKE_LINES(own, r, line, step, lines) \
    A sum[VECTOR]; \
    EACH_OF_WORD(j) sum[j] = 0; \
    _Pragma("unroll") for (int u = 0; u < BATCH_LINES; u++) { \
        if (u * step >= lines) continue; \
        EACH_OF_WORD(j) sum[j] += (A)LOAD(T, r[u].each, j); \
    } \
    EACH_OF_WORD(j) own[j].v += sum[j]

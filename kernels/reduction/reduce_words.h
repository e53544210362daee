// Elements of x, and the words in which threads read them. Every fold includes this file once: after its partial results, which x may
// hold, and before its functions of vectors.

#ifdef PARTIAL_X
// The values of partial results stand for elements.
typedef P From;
#define LOAD_X(x, at) VALUE((x)[at])
#define ELEMENT(x, at, i) ((x)[at])
#else
typedef STORAGE(X) From;
#define ELEMENT(x, at, i) take(LOAD(X, x, at), i)
#endif
// Whether a vector has elements of one result.
#define IS_OF_ROWS (IS_SET(ROWS) && !IS_SET(PARTIAL_X))
// The accumulators of a thread of reduce_rows.
#define LANES (TAKES_VECTORS ? 1 : VECTOR)
// 2^-n with the smallest n for which `count` is less than 2^n.
#define SHARE_OF(count) as_f32((u32)(126 - LOG2(count)) << 23)

#ifdef ROW
#define HAS_ROW 1
#define FIXED(number) Fixed fixed = fixed_of((idx)(number) ROW_ARGUMENTS)
#define TAKE(w, n, at, i) take_words(acc, *(w), fixed, IS_SET(SHARES) ? state->share : 1, at, i ROW_ARGUMENTS)
#else
#define HAS_ROW 0
#define ROW_PARAMETERS
#define FIXED(number)
#define TAKE(w, n, at, i) \
    do { \
        if (TAKES_VECTORS) \
            TAKE_VECTOR(w, n, i); \
        else \
            take_lanes(acc, *(w), i, state); \
    } while (0)
#if VECTOR > 1
typedef union {
    WORD all;
    From each[VECTOR];
} Read;
#define READ(w, x, at) ((w).all = *(GLOBAL const WORD *)((x) + (at)))
#else
typedef struct {
    From each[1];
} Read;
#define READ(w, x, at) ((w).each[0] = (x)[at])
#endif
#endif

// What a thread knows beside its accumulators.
typedef struct {
    STATE
} State;

#ifndef ROW
// Adds each element of a vector to an accumulator of its own. `i` is the first in reduce_rows, and all of them in reduce_columns.
FUNCTION void take_lanes(P *acc, Read w, idx i, State *state) {
#pragma unroll
    for (int j = 0; j < VECTOR; j++) acc[j] = ADDED(acc[j], w.each, j, IS_SET(ROWS) ? i + j : i, IS_SET(ROWS) ? 0 : j);
}
#endif

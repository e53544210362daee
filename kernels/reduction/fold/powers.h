// The logarithm of a sum of powers of e: the largest element, and the sum of e^(x - largest).

typedef struct {
    A v;
    A s;
} P;
#define VALUE(partial) (partial).v

FUNCTION P powers(A v, A s) {
    P made;
    made.v = v;
    made.s = s;
    return made;
}
#define NOTHING powers(LOWEST, 0)

FUNCTION P take(A v, idx i) { return powers(v, 1); }

// If both maxima are equal, which may be infinite, the sums are added unscaled.
FUNCTION P join(P a, P b) {
    int is_larger = b.v > a.v;
    A high = is_larger ? b.v : a.v, low = is_larger ? a.v : b.v;
    A unit = low == high ? (A)1 : exp_(low - high);
    return powers(high, (is_larger ? b.s : a.s) + (is_larger ? a.s : b.s) * unit);
}

#define FINISHED(result) ((result).v + log_((result).s))
// 0 and 0 for a slice of -infinity alone, but not for NaN, which is in the sum.
#define HAS_LARGEST(result) ((result).v != LOWEST)
#define PUT_SECOND(at, result) \
    if (IS_SET(TWOFOLD)) { \
        second[at] = HAS_LARGEST(result) ? (result).v : (A)0; \
        second[RESULTS + (at)] = HAS_LARGEST(result) || IS_NAN((result).s) ? log_((result).s) : (A)0; \
    }

#define STATE int none;
#define START(n) ((void)0)
#define SET_PIVOT(x, at, j) ((void)0)
#define ADD_PIVOT(result, j) ((void)0)
#define ADDED(a, x, at, i, j) join(a, ELEMENT(x, at, i))
#define TAKES_VECTORS IS_OF_ROWS
#define TAKE_VECTOR(w, n, i) take_vector(acc, *(w))
#define TAKES_TOGETHER 0
#define END_VECTORS(first, is_any) ((void)0)

#include "reduction/reduce_words.h"

// Powers relative to the largest element so far. An element equal to it has power 1, even if it is infinite.
#define SHARE(v, high) ((v) == (high) ? (A)1 : POWER((v) - (high)))
FUNCTION void take_vector(P *acc, Read w) {
    A high = acc->v;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) high = fmax_(high, (A)LOAD(X, w.each, j));
    A s = acc->s * SHARE(acc->v, high);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) s += SHARE((A)LOAD(X, w.each, j), high);
    *acc = powers(high, s);
}

// Mean and variance: the mean relative to the pivot, the mean of squared deviations, and the number of elements. The pivot is the first element of a
// slice, near which the others often are; in a further launch it is 0.

typedef struct {
    A v;
    A s;
    idx i;
} P;
#define VALUE(partial) (partial).v

FUNCTION P spread(A v, A s, idx i) {
    P made;
    made.v = v;
    made.s = s;
    made.i = i;
    return made;
}
#define NOTHING spread(0, 0, 0)

FUNCTION P take(A v, idx i) { return spread(v, 0, 1); }

// Chan et al. 1982. No intermediate value exceeds the result, unless the means are so far apart that the result is infinite.
FUNCTION P join(P a, P b) {
    idx n = a.i + b.i;
    A unit = (A)1 / (A)(n > 0 ? n : 1), rest = (A)a.i * unit, share = (A)b.i * unit, d = b.v - a.v;
    A mean = d - d == 0 ? a.v + d * share : a.v * rest + b.v * share;
    return spread(mean, a.s * rest + b.s * share + d * rest * (d * share), n);
}

// 0, or NaN for an infinite mean, from which deviations are undefined.
#define NAN_IF_INFINITE(result) ((result).v - (result).v)
#define FINISHED(result) (((result).s + NAN_IF_INFINITE(result)) * ((A)(result).i / divisor))
#define PUT_SECOND(at, result) second[at] = (result).v + NAN_IF_INFINITE(result)

FUNCTION A pivot_of(A v) { return fabs_(v) < (A)1e30f ? v : (A)0; }
#define STATE A pivot[IS_SET(ROWS) ? 1 : VECTOR];
#define START(n) _Pragma("unroll") for (int j = 0; j < (IS_SET(PARTIAL_X) ? 0 : (n)); j++) state->pivot[j] = 0
#define SET_PIVOT(x, at, j) \
    if (!IS_SET(PARTIAL_X)) state->pivot[j] = pivot_of((A)LOAD(X, x, at))
#define ADD_PIVOT(result, j) \
    if (!IS_SET(PARTIAL_X)) (result).v += state->pivot[j]
#define ADDED(a, x, at, i, j) \
    join(a, IS_SET(PARTIAL_X) ? ELEMENT(x, at, i) : spread((A)LOAD(X, x, at) - state->pivot[j], 0, 1))
#define TAKES_VECTORS IS_OF_ROWS
#define TAKE_VECTOR(w, n, i) take_vectors(acc, w, n, state->pivot)
#define TAKES_TOGETHER TAKES_VECTORS
#define END_VECTORS(first, is_any) ((void)0)

#include "reduction/reduce_words.h"

// The mean of `n` vectors and their deviations, with a single division. Sums that leave the range are recomputed from scaled
// elements.
#define OF_VECTORS(i) ((A)LOAD(X, w[(i) / VECTOR].each, (i) % VECTOR) - pivot[0])
#define EACH_OF_VECTORS(i) _Pragma("unroll") for (int i = 0; i < n * VECTOR; i++)
FUNCTION void take_vectors(P *acc, const Read *w, int n, const A *pivot) {
    A share = (A)1 / (A)(n * VECTOR), mean = 0, s = 0;
    EACH_OF_VECTORS(i) mean += OF_VECTORS(i);
    mean *= share;
    EACH_OF_VECTORS(i) {
        A d = OF_VECTORS(i) - mean;
        s += d * d;
    }
    s *= share;
    if (s - s != 0) {
        // Relative to one of the elements, the mean of equal elements is exact. A rounded mean would leave deviations, whose
        // squares could be infinite.
        A first = OF_VECTORS(0) * share;
        mean = s = 0;
        EACH_OF_VECTORS(i) mean += OF_VECTORS(i) * share - first;
        mean += OF_VECTORS(0);
        EACH_OF_VECTORS(i) {
            A d = OF_VECTORS(i) - mean;
            s += d * share * d;
        }
    }
    acc[0] = join(acc[0], spread(mean, s, n * VECTOR));
}

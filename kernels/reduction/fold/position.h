// The position of an extremum.

#include "reduction/fold/pair.h"

// The position after all others: every element takes precedence.
#define NOTHING pair(WORST, HIGHEST_IDX)

FUNCTION P take(A v, idx i) { return pair(v, i); }

// NaN beats any number. Of equal elements the first wins, but with LAST_NAN the last NaN.
FUNCTION P join(P a, P b) {
    int is_better = BETTER(b.v, a.v) || (IS_NAN(b.v) && !IS_NAN(a.v)), is_equal = b.v == a.v;
    if (IS_SET(LAST_NAN))
        is_better = is_better || (IS_NAN(b.v) && IS_NAN(a.v) && b.i > a.i);
    else
        is_equal = is_equal || (IS_NAN(b.v) && IS_NAN(a.v));
    return is_better || (is_equal && b.i < a.i) ? b : a;
}

#define FINISHED(result) ((result).i)
#define PUT_SECOND(at, result) ((void)0)
#define STATE Read kept;
#define TAKE_VECTOR(w, n, i) take_vector(acc, &state->kept, *(w), i)
// Where no element beat NOTHING, all are equal to it.
#define END_VECTORS(first, is_any) \
    if (TAKES_VECTORS) { \
        if (acc[0].i != HIGHEST_IDX) \
            acc[0] = found(state->kept, acc[0]); \
        else if (is_any) \
            acc[0] = pair(WORST, first); \
    }

#include "reduction/reduce_words.h"

// A whole vector counts as one element, with the value of its best element and the position of its first, until the thread has seen
// all of its vectors. Vectors come in ascending order, so an equal value does not replace the kept one.
FUNCTION void take_vector(P *best, Read *kept, Read w, idx i) {
    A v = (A)LOAD(X, w.each, 0);
#pragma unroll
    for (int j = 1; j < VECTOR; j++) v = BEST(v, (A)LOAD(X, w.each, j));
    int is_first = IS_SET(LAST_NAN) || !IS_NAN(best->v);
    if ((BETTER(v, best->v) || IS_NAN(v)) && is_first) {
        *best = pair(v, i);
        *kept = w;
    }
}

// The position of the best element, which is in the vector at `best.i`.
FUNCTION P found(Read kept, P best) {
    int at = 0;
#pragma unroll
    for (int j = VECTOR - 1; j >= 0; j--) {
        A v = (A)LOAD(X, kept.each, j);
        if (v == best.v || (IS_NAN(v) && IS_NAN(best.v))) at = j;
    }
#pragma unroll
    for (int j = 0; j < VECTOR; j++)
        if (IS_SET(LAST_NAN) && IS_NAN((A)LOAD(X, kept.each, j))) at = j;
    return pair(best.v, best.i + at);
}

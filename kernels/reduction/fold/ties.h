// An extremum, and the number of elements equal to it.

#include "reduction/fold/pair.h"

#define NOTHING pair(WORST, 0)

FUNCTION P take(A v, idx i) { return pair(v, !IS_NAN(v)); }

// NaN beats any number, and no element equals it.
FUNCTION P join(P a, P b) {
    if (b.v == a.v) a.i += b.i;
    return BETTER(b.v, a.v) || IS_NAN(b.v) ? b : a;
}

#define FINISHED(result) ((result).v)
#define PUT_SECOND(at, result) second[at] = (A)1 / (A)(result).i
#define STATE int none;
#define TAKE_VECTOR(w, n, i) take_vector(acc, *(w))
#define END_VECTORS(first, is_any) ((void)0)

#include "reduction/reduce_words.h"

// A whole vector counts as one element, with the value of its best. The number of elements equal to it is counted only where it
// matters, which is rare.
FUNCTION void take_vector(P *acc, Read w) {
    A v = (A)LOAD(X, w.each, 0);
#pragma unroll
    for (int j = 1; j < VECTOR; j++) v = BEST(v, (A)LOAD(X, w.each, j));
    if (BETTER(v, acc->v) || v == acc->v || IS_NAN(v)) {
        idx n = 0;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) n += (A)LOAD(X, w.each, j) == v;
        *acc = join(*acc, pair(v, n));
    }
}

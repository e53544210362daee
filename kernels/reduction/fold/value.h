// A sum, a product of integers, or an extremum. SHARES: the elements of a sum are multiplied by `share`. FINISH_MEAN: the sum is divided.

#include "reduction/fold/extremum.h"

typedef A P;
#define VALUE(partial) (partial)
#define NOTHING ((P)(IS_SET(JOIN_SUM) ? 0 : IS_SET(JOIN_PROD) ? 1 : WORST))

FUNCTION P take(A v, idx i) { return v; }

FUNCTION P join(P a, P b) {
    if (IS_SET(JOIN_SUM)) return ADD(a, b);
    if (IS_SET(JOIN_PROD)) return MULTIPLY(a, b);
    return BEST(a, b);
}

#define FINISHED(result) mean_of(result, divisor)
#define PUT_SECOND(at, result) ((void)0)

#define ADDED(a, x, at, i, j) (IS_SET(SHARES) ? (a) + (A)LOAD(X, x, at) * state->share : join(a, ELEMENT(x, at, i)))
#define STATE A share;
#define START(n) \
    if (IS_SET(SHARES)) state->share = SHARE_OF(count)
#define SET_PIVOT(x, at, j) ((void)0)
#define ADD_PIVOT(result, j) ((void)0)
#define TAKES_VECTORS 0
#define TAKE_VECTOR(w, n, i) ((void)0)
#define TAKES_TOGETHER 0
#define END_VECTORS(first, is_any) ((void)0)

#include "reduction/reduce_words.h"

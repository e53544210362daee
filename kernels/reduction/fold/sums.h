// Several sums of what the steps of a row make of the same elements. SHARES: the terms are multiplied by a share. FINISH_MEAN: the sums are
// divided.

typedef Sums P;
#define VALUE(partial) (partial).v[0]

FUNCTION P of_all(A v) {
    P made;
#pragma unroll
    for (int s = 0; s < SUMS; s++) made.v[s] = v;
    return made;
}
#define NOTHING of_all(0)

FUNCTION P join(P a, P b) {
#pragma unroll
    for (int s = 0; s < SUMS; s++) a.v[s] = a.v[s] + b.v[s];
    return a;
}

#define FINISHED(result) mean_of((result).v[0], divisor)
#if SUMS > 2
#define SUM_PARAMETERS , GLOBAL STORAGE(Y) *y_1, GLOBAL STORAGE(Y) *y_2
#define PUT_SECOND(at, result) \
    do { \
        STORE(Y, y_1, at, mean_of((result).v[1], divisor)); \
        STORE(Y, y_2, at, mean_of((result).v[2], divisor)); \
    } while (0)
#else
#define SUM_PARAMETERS , GLOBAL STORAGE(Y) *y_1
#define PUT_SECOND(at, result) STORE(Y, y_1, at, mean_of((result).v[1], divisor))
#endif

#define ADDED(a, x, at, i, j) (a)
#define STATE A share;
#define START(n) \
    if (IS_SET(SHARES)) state->share = SHARE_OF(count)
#define SET_PIVOT(x, at, j) ((void)0)
#define ADD_PIVOT(result, j) ((void)0)
#define TAKES_VECTORS 0
#define TAKES_TOGETHER 0
#define END_VECTORS(first, is_any) ((void)0)

#include "reduction/reduce_words.h"

// A product of floats as a fraction and an exponent of 2: the product of some of the factors leaves no range.

typedef Scaled P;
#define VALUE(partial) unscaled(partial)
#define NOTHING scaled(1, 0)

FUNCTION P take(A v, idx i) { return scaled(v, 0); }

FUNCTION P join(P a, P b) { return product(a, b); }

#define FINISHED(result) unscaled(result)
#define PUT_SECOND(at, result) ((void)0)

#define STATE int none;
#define START(n) ((void)0)
#define SET_PIVOT(x, at, j) ((void)0)
#define ADD_PIVOT(result, j) ((void)0)
#define ADDED(a, x, at, i, j) join(a, ELEMENT(x, at, i))
#define TAKES_VECTORS 0
#define TAKE_VECTOR(w, n, i) ((void)0)
#define TAKES_TOGETHER 0
#define END_VECTORS(first, is_any) ((void)0)

#include "reduction/reduce_words.h"

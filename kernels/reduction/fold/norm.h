// The root of a sum of squares. Without SQUARES, x has sums of squares. A bit is in `marks` if it is in an element.

typedef A P;
#define VALUE(partial) (partial)
#define NOTHING ((P)0)

FUNCTION P take(A v, idx i) { return v; }

FUNCTION P join(P a, P b) { return joined_squares(a, b); }

#define FINISHED(result) (IS_SET(FINISH_NORM) ? root_of(result) : (result))
#define PUT_SECOND(at, result) ((void)0)

FUNCTION A square_of(A v, u32 *marks) {
    *marks |= MARK_OF(v);
    return v * v;
}
#define ADDED(a, x, at, i, j) \
    (IS_SET(SQUARES) ? (a) + square_of((A)LOAD(X, x, at), &state->marks) : join(a, ELEMENT(x, at, i)))
#define STATE u32 marks;
#define START(n) state->marks = 0
#define SET_PIVOT(x, at, j) ((void)0)
#define ADD_PIVOT(result, j) ((void)0)
#define TAKES_VECTORS 0
#define TAKE_VECTOR(w, n, i) ((void)0)
#define TAKES_TOGETHER 0
#define END_VECTORS(first, is_any) ((void)0)

#include "reduction/reduce_words.h"

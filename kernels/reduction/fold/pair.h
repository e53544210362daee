// The largest or the smallest element with a number: its position among the reduced elements, or how many elements are equal to it.

#include "reduction/fold/extremum.h"

typedef struct {
    A v;
    idx i;
} P;
#define VALUE(partial) (partial).v

FUNCTION P pair(A v, idx i) {
    P made;
    made.v = v;
    made.i = i;
    return made;
}

#define START(n) ((void)0)
#define SET_PIVOT(x, at, j) ((void)0)
#define ADD_PIVOT(result, j) ((void)0)
#define ADDED(a, x, at, i, j) join(a, ELEMENT(x, at, i))
#define TAKES_VECTORS IS_OF_ROWS
#define TAKES_TOGETHER 0

// The last step of a matrix product: y = activation(v + beta c), or a row of v and c.
//
// ACTIVATION: name of a function of one operand, which precedes this file
// JOIN: name of a function of two operands, which precedes this file
// KEEPS_SUM: 0 or 1, z gets the argument of the activation
// HAS_C: 0 or 1, c is read; if not defined, beta != 0
// S: the storage type; A: the arithmetic's type

typedef STORAGE(T) S;

#include "activate.h"

#ifndef ACTIVATION
#define KEEPS_SUM 0
#endif

#ifndef HAS_C
#define HAS_C (beta != 0)
#endif

#ifdef JOIN
FUNCTION A join(A v, A c) {
    A y;
    JOIN(v, c, &y);
    return y;
}
#define ADD_C(v, has_c, c, at) \
    if (has_c) v = join(v, LOAD(T, c, at))
#else
#define ADD_C(v, has_c, c, at) \
    if (HAS_C && (has_c)) v += beta * LOAD(T, c, at)
#endif

// Writes element i of y and z. v is alpha times the product; `has_c` is true if c has the element, at `at`.
#define FINISH(v, has_c, c, at, y, z, i) \
    do { \
        ADD_C(v, has_c, c, at); \
        STORE(T, y, i, activate(v)); \
        if (KEEPS_SUM) STORE(T, z, i, v); \
    } while (0)

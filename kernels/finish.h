// The end of a product of matrices: y = activation(v + beta c), or a row of v and c.
//
// ACTIVATION names the function of a row of one operand that stands before the file, and JOIN that of a row of two. With
// KEEPS_SUM, z gets what the activation is applied to. HAS_C: whether c is read, which otherwise beta tells. S is the storage
// type, A the arithmetic's.

typedef STORAGE(T) S;

#ifdef ACTIVATION
FUNCTION A activate(A v) {
    A y;
    ACTIVATION(v, &y);
    return y;
}
#else
#define activate(v) (v)
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

// Element i of y and of z: v is alpha times its sum, and has_c that c has it, at `at`.
#define FINISH(v, has_c, c, at, y, z, i) \
    do { \
        ADD_C(v, has_c, c, at); \
        STORE(T, y, i, activate(v)); \
        if (KEEPS_SUM) STORE(T, z, i, v); \
    } while (0)

// What norms of rows read and write: the elements outside of the arithmetic, and the parameters of a row.
//
// A program with an index or with a smaller dtype gets another file with the same names:
//
//   INDEX_ARGUMENTS                further arguments of the kernel, each followed by a comma
//   SOURCE(x, at)                  the address to which positions in the row of the result are added
//   CHECKED(rstd, at)              rstd, or NaN for a row that is not there
//   SL, Low                        an element and a word of x and y of the forward pass, and of their gradients
//   low_numbers_of(v, r, is_inside), LOW_AT(x, i)   their numbers; 0 for a word outside of the row
//   read_kept_low(r, x, at), read_batch_low(r, x, at, b)   the words of a row
//   put_low(y, v, at, w), put_low_edge(y, v, at)    writes a word, and the thread's element outside of words
//   LOW_DX, PUT_LOW_DX(d, at, w)   an argument for a copy of dx, and what writes its words

typedef STORAGE(P) SP;

#ifdef INDEX
#include "normalization/row_indexed.h"
#else
#define INDEX_ARGUMENTS
#define SOURCE(x, at) (x)
#define CHECKED(rstd, at) (rstd)
#endif

#ifdef LOW
#include "normalization/row_low.h"
#else
typedef S SL;
typedef Read Low;
#define low_numbers_of(v, r, is_inside) numbers_of(v, r, is_inside, 0)
#define LOW_AT(x, i) ((A)LOAD(T, x, i))
#define read_kept_low read_kept
#define read_batch_low read_batch
#define put_low put_numbers
#define put_low_edge put_edge
#define LOW_DX
#define PUT_LOW_DX(d, at, w) ((void)0)
#endif

// The place of an element's parameter. A channel of `inner` elements has one.
FUNCTION i64 parameter_of(idx position, idx inner) {
    return IS_SET(CHANNELS) ? (i64)((uidx)position / (uidx)inner) : (i64)position;
}

// The parameters of the elements of a word.
#ifdef PIECE
typedef union {
    PIECE all[VECTOR * sizeof(SP) / sizeof(PIECE)];
    SP each[VECTOR];
} Pieces;

FUNCTION void parameters_of(A *v, GLOBAL const SP *p, Row at, idx w, idx inner) {
    Pieces r;
    GLOBAL const PIECE *from = (GLOBAL const PIECE *)(p + (w < at.words ? w : 0) * VECTOR);
#pragma unroll
    for (int i = 0; i < (int)(VECTOR * sizeof(SP) / sizeof(PIECE)); i++) r.all[i] = from[i];
    EACH_ELEMENT(j) v[j] = (A)LOAD(P, r.each, j);
}
#else
FUNCTION void parameters_of(A *v, GLOBAL const SP *p, Row at, idx w, idx inner) {
    w = w < at.words ? w : 0;
    if (IS_SET(ALIKE) && IS_SET(WHOLE)) {
        A all = LOAD(P, p, parameter_of(POSITION(at, w, 0), inner));
        EACH_ELEMENT(j) v[j] = all;
    } else {
        EACH_ELEMENT(j) v[j] = at.words > 0 ? (A)LOAD(P, p, parameter_of(POSITION(at, w, j), inner)) : (A)0;
    }
}
#endif

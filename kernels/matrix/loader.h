// Reads the factors of a matrix product, a [B, M, K] and b [B, K, N], of any strides. The columns of b are called rows here, so
// that both factors have rows and K. finish.h has the last step of the product.
//
// Products read their factors only through these names. A program with another loader (Variant::loading) gets another file with the
// same names in place of this one. The product then multiplies the elements that this file finds, and no matrix is written for it.
//
//   Factor                         a factor, as a group reads it
//   factor(x, p, side, batch, row, k)   matrix `batch` of a factor, from `row` and element `k` of K on
//   advance(&f, side, k)           `k` further along K
//   has_element(f, side, row, k)   1 if an element within M, N and K is in memory; otherwise it is 0
//   element(f, side, row, k)       the address of the element, or of the word that begins with it
//   Words                          equidistant words of a factor, at most WORDS_TOGETHER: a kernel that reads words defines it
//   words(f, side, row, k, row_step, k_step)   words from (row, k) on, at a distance of row_step rows and k_step elements of K
//   word_at(w, side, i, k)         the position of word i, `k` further along K; -1 if it is not in memory: then it is 0
//   WORD_PLACE(w, at)              the address of a position; w.x + at if it is not defined
//   Offset                         the type of this position
//   HAS_ABSENT                     defined if elements may not be in memory: results that are NaN are then summed again (again.h)
//   LOADER_ARGUMENTS               further arguments of the kernel, each after a comma
//   LOADER_VALUES                  the same arguments, passed on to factor()
//
// `side` is SIDE_A or SIDE_B, and always a constant, so that a loader may treat the factors differently at no cost.
//
// A_STRIDES, B_STRIDES: strides of batch, row and K of a factor
// A_VECTOR, B_VECTOR: 1 .. 16, elements of the words of a factor
// A_ALONG_K, B_ALONG_K: 0 or 1, words are along K; otherwise along rows

#include "finish.h"

#define SIDE_A 0
#define SIDE_B 1
#define LOADER_ARGUMENTS
#define LOADER_VALUES

typedef struct {
    GLOBAL const S *x;
    idx row, k;
} Factor;

// The stride along words is 1.
FUNCTION Factor factor(GLOBAL const S *x, Ints p, int side, i64 batch, i64 row, i64 k) {
    i64 of_batch = side == SIDE_A ? A_STRIDES(0) : B_STRIDES(0), of_row = side == SIDE_A ? A_STRIDES(1) : B_STRIDES(1);
    i64 of_k = side == SIDE_A ? A_STRIDES(2) : B_STRIDES(2);
    int has_words = (side == SIDE_A ? A_VECTOR : B_VECTOR) > 1, is_along_k = side == SIDE_A ? A_ALONG_K : B_ALONG_K;
    Factor f;
    f.x = x + (batch * of_batch + row * of_row + k * of_k);
    f.row = has_words && !is_along_k ? 1 : (idx)of_row;
    f.k = has_words && is_along_k ? 1 : (idx)of_k;
    return f;
}

FUNCTION void advance(Factor *f, int side, i64 k) { f->x += k * f->k; }

FUNCTION int has_element(Factor f, int side, int row, int k) { return 1; }

FUNCTION GLOBAL const S *element(Factor f, int side, int row, int k) { return f.x + (row * f.row + k * f.k); }

#ifdef WORDS_TOGETHER
typedef struct {
    GLOBAL const S *x;
    i64 step;
    idx k;
} Words;

// One of the steps is 0.
FUNCTION Words words(Factor f, int side, int row, int k, int row_step, int k_step) {
    Words w;
    w.x = element(f, side, row, k);
    w.step = row_step > 0 ? row_step * (i64)f.row : k_step * (i64)f.k;
    w.k = f.k;
    return w;
}

typedef i64 Offset;

FUNCTION Offset word_at(Words w, int side, int i, int k) { return k * (i64)w.k + i * w.step; }
#endif

// A factor of a product of a convolution, as both of its loaders have it: conv_first.h and conv_last.h.

#include "finish.h"
#include "conv/conv.h"

#define SIDE_A 0
#define SIDE_B 1
#define LOADER_ARGUMENTS
#define LOADER_VALUES

typedef struct {
    GLOBAL const S *x;
    i64 row, k;
    Ints p;
} Factor;

FUNCTION void advance(Factor *f, int side, i64 k) { f->k += k; }

// The loader of convolutions, in place of loader.h, which documents the names. It reads the factors of a convolution's maps.
// Columns of windows are never written to memory. n: samples, g: groups of channels. y [n, g, outputs, OUT], x [n, g, channels, IN]
// and w [g, outputs, channels, KERNEL] are contiguous. Along each dimension, element i of window q is element q S - P + i D of the
// volume, or none outside of it.
//
//   CONV_FORWARD   y[n, g] = w[g] @ windows of x[n, g]:          rows are outputs and windows q, K is (channel, i)
//   CONV_INPUT     x[n, g] = w[g]^T @ what windows add to x:     rows are channels and elements l, K is (output, i)
//   CONV_WEIGHT    w[g]    = y[., g] @ windows of x[., g]^T:     rows are outputs and (channel, i), K is (n, q)
//
// FLAT: flag, volumes and windows have one slice
//
// Extents, strides and padding are arguments, so that all convolutions of a dtype share a few programs.

#include "finish.h"

#define SIDE_A 0
#define SIDE_B 1

// groups, channels, outputs; then by dimension (depth, height, width) IN, OUT, KERNEL, S, P and D; then dividers for QUOTIENT: the
// width and height of the product's volumes, the elements of OUT, the elements of a window, its height and width, and S.
typedef struct {
    i64 v[30];
} Extents;
#define LOADER_ARGUMENTS , Extents extents
#define LOADER_VALUES , extents

#define DEPTH 0
#define HEIGHT 1
#define WIDTH 2
#define N_GROUPS e.v[0]
#define N_CHANNELS ((idx)e.v[1])
#define N_OUTPUTS ((idx)e.v[2])
#define IN_ALONG(d) ((idx)e.v[3 + (d)])
#define OUT_ALONG(d) ((idx)e.v[6 + (d)])
#define KERNEL_ALONG(d) ((idx)e.v[9 + (d)])
#define STRIDE_ALONG(d) ((idx)e.v[12 + (d)])
#define PADDING_ALONG(d) ((idx)e.v[15 + (d)])
#define DILATION_ALONG(d) ((idx)e.v[18 + (d)])
#define BY_WIDTH e.v[21]
#define BY_HEIGHT e.v[22]
#define BY_OUT e.v[23]
#define BY_WINDOW e.v[24]
#define BY_KERNEL_HEIGHT e.v[25]
#define BY_KERNEL_WIDTH e.v[26]
#define BY_STRIDE(d) e.v[27 + (d)]
#define IN (e.v[3] * e.v[4] * e.v[5])
#define OUT (e.v[6] * e.v[7] * e.v[8])
#define WINDOW ((idx)(e.v[9] * e.v[10] * e.v[11]))

typedef struct {
    GLOBAL const S *x;
    i64 row, k;
    Extents e;
} Factor;

FUNCTION Factor factor(GLOBAL const S *x, Ints p, int side, i64 batch, i64 row, i64 k, Extents e) {
    Factor f;
#if defined(CONV_FORWARD)
    i64 first = side == SIDE_A ? batch % N_GROUPS * N_OUTPUTS * N_CHANNELS * WINDOW : batch * N_CHANNELS * IN;
#elif defined(CONV_INPUT)
    i64 first = side == SIDE_A ? batch % N_GROUPS * N_OUTPUTS * N_CHANNELS * WINDOW : batch * N_OUTPUTS * OUT;
#else
    i64 first = side == SIDE_A ? batch * N_OUTPUTS * OUT : batch * N_CHANNELS * IN;
#endif
    f.x = x + first;
    f.row = row;
    f.k = k;
    f.e = e;
    return f;
}

FUNCTION void advance(Factor *f, int side, i64 k) { f->k += k; }

typedef struct {
    idx z, y, x;
} Place;

// The position of an element in a volume or window of this height and width.
FUNCTION Place place_of(idx at, idx height, i64 by_height, idx width, i64 by_width) {
    Place p;
    idx line = QUOTIENT(at, width, by_width);
    p.x = at - line * width;
#ifdef FLAT
    p.z = 0;
    p.y = line;
#else
    p.z = QUOTIENT(line, height, by_height);
    p.y = line - p.z * height;
#endif
    return p;
}

#define PLACE_IN(at) place_of(at, IN_ALONG(HEIGHT), BY_HEIGHT, IN_ALONG(WIDTH), BY_WIDTH)
#define PLACE_OUT(at) place_of(at, OUT_ALONG(HEIGHT), BY_HEIGHT, OUT_ALONG(WIDTH), BY_WIDTH)
#define PLACE_IN_WINDOW(at) place_of(at, KERNEL_ALONG(HEIGHT), BY_KERNEL_HEIGHT, KERNEL_ALONG(WIDTH), BY_KERNEL_WIDTH)

// The position along a dimension of element i of window q.
#define ELEMENT(q, i, d) ((q) * STRIDE_ALONG(d) - PADDING_ALONG(d) + (i) * DILATION_ALONG(d))

// The position in the volume of element i of window q; -1 outside of it.
FUNCTION idx in_volume(Place q, Place i, Extents e) {
    idx z = ELEMENT(q.z, i.z, DEPTH), y = ELEMENT(q.y, i.y, HEIGHT), x = ELEMENT(q.x, i.x, WIDTH);
    int is_inside = z >= 0 && z < IN_ALONG(DEPTH) && y >= 0 && y < IN_ALONG(HEIGHT) && x >= 0 && x < IN_ALONG(WIDTH);
    return is_inside ? (z * IN_ALONG(HEIGHT) + y) * IN_ALONG(WIDTH) + x : (idx)-1;
}

// The window along a dimension whose element i is at l; -1 if there is none.
FUNCTION idx window_along(idx l, idx i, int d, Extents e) {
    idx after = l + PADDING_ALONG(d) - i * DILATION_ALONG(d);
    if (after < 0) return -1;
    idx q = QUOTIENT(after, STRIDE_ALONG(d), BY_STRIDE(d));
    return q * STRIDE_ALONG(d) == after && q < OUT_ALONG(d) ? q : (idx)-1;
}

// The window whose element i is at l; -1 if there is none.
FUNCTION idx window_at(Place l, Place i, Extents e) {
    idx z = window_along(l.z, i.z, DEPTH, e), y = window_along(l.y, i.y, HEIGHT, e), x = window_along(l.x, i.x, WIDTH, e);
    return z >= 0 && y >= 0 && x >= 0 ? (z * OUT_ALONG(HEIGHT) + y) * OUT_ALONG(WIDTH) + x : (idx)-1;
}

// The position of an element, from f.x on; -1 if there is none.
FUNCTION i64 position(Factor f, int side, int row, int k) {
    Extents e = f.e;
    idx r = (idx)f.row + row, at = (idx)f.k + k;
#if defined(CONV_FORWARD)
    if (side == SIDE_A) return r * (i64)(N_CHANNELS * WINDOW) + at;
    idx channel = QUOTIENT(at, WINDOW, BY_WINDOW);
    idx l = in_volume(PLACE_OUT(r), PLACE_IN_WINDOW(at - channel * WINDOW), e);
    return l < 0 ? -1 : channel * IN + l;
#elif defined(CONV_INPUT)
    idx output = QUOTIENT(at, WINDOW, BY_WINDOW), i = at - output * WINDOW;
    if (side == SIDE_A) return (output * (i64)N_CHANNELS + r) * WINDOW + i;
    idx q = window_at(PLACE_IN(r), PLACE_IN_WINDOW(i), e);
    return q < 0 ? -1 : output * OUT + q;
#else
    idx sample = QUOTIENT(at, OUT, BY_OUT), q = at - sample * (idx)OUT;
    if (side == SIDE_A) return (sample * N_GROUPS * N_OUTPUTS + r) * OUT + q;
    idx channel = QUOTIENT(r, WINDOW, BY_WINDOW);
    idx l = in_volume(PLACE_OUT(q), PLACE_IN_WINDOW(r - channel * WINDOW), e);
    return l < 0 ? -1 : (sample * N_GROUPS * N_CHANNELS + channel) * IN + l;
#endif
}

FUNCTION int has_element(Factor f, int side, int row, int k) { return position(f, side, row, k) >= 0; }

FUNCTION GLOBAL const S *element(Factor f, int side, int row, int k) { return f.x + position(f, side, row, k); }

// The loader of convolutions whose channels come before their volumes, in place of loader.h, which documents the names. It reads the
// factors of a convolution's maps. Columns of windows are never written to memory. n: samples, g: groups of channels. y [n, g,
// outputs, OUT], x [n, g, channels, IN] and w [g, outputs, channels, KERNEL] are contiguous. q: windows, i: elements of a window, l:
// elements of a volume.
//
//   CONV_FORWARD   y[n, g] = w[g] @ windows of x[n, g]:          rows are outputs and q, K is (channel, i)
//   CONV_INPUT     x[n, g] = w[g]^T @ what windows add to x:     rows are channels and l, K is (output, i)
//   CONV_WEIGHT    w[g]    = y[., g] @ windows of x[., g]^T:     rows are outputs and (channel, i), K is (n, q)

#include "conv/conv_factor.h"

FUNCTION Factor factor(GLOBAL const S *x, Ints p, int side, i64 batch, i64 row, i64 k) {
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
    f.p = p;
    return f;
}

// The position of an element, from f.x on; -1 if there is none.
FUNCTION i64 position(Factor f, int side, int row, int k) {
    Ints p = f.p;
    idx r = (idx)f.row + row, at = (idx)f.k + k;
#if defined(CONV_FORWARD)
    if (side == SIDE_A) return r * (i64)(N_CHANNELS * WINDOW) + at;
    idx channel = QUOTIENT(at, WINDOW, BY_WINDOW);
    idx l = in_volume(PLACE_OUT(r), PLACE_IN_WINDOW(at - channel * WINDOW), p);
    return l < 0 ? -1 : channel * IN + l;
#elif defined(CONV_INPUT)
    idx output = QUOTIENT(at, WINDOW, BY_WINDOW), i = at - output * WINDOW;
    if (side == SIDE_A) return (output * (i64)N_CHANNELS + r) * WINDOW + i;
    idx q = window_at(PLACE_IN(r), PLACE_IN_WINDOW(i), p);
    return q < 0 ? -1 : output * OUT + q;
#else
    idx sample = QUOTIENT(at, OUT, BY_OUT), q = at - sample * (idx)OUT;
    if (side == SIDE_A) return (sample * N_GROUPS * N_OUTPUTS + r) * OUT + q;
    idx channel = QUOTIENT(r, WINDOW, BY_WINDOW);
    idx l = in_volume(PLACE_OUT(q), PLACE_IN_WINDOW(r - channel * WINDOW), p);
    return l < 0 ? -1 : (sample * N_GROUPS * N_CHANNELS + channel) * IN + l;
#endif
}

FUNCTION int has_element(Factor f, int side, int row, int k) { return position(f, side, row, k) >= 0; }

FUNCTION GLOBAL const S *element(Factor f, int side, int row, int k) { return f.x + position(f, side, row, k); }

#include "matrix/again.h"

// The loader of convolutions whose channels are last in memory, in place of loader.h, which documents the names. It reads the factors
// of a convolution's maps. Columns of windows are never written to memory. n: samples. y [n, OUT, outputs], x [n, IN, channels] and
// w [outputs, KERNEL, channels] are contiguous. q: windows, i: elements of a window, l: elements of a volume.
//
//   CONV_FORWARD   y = windows of x @ w^T:           rows are (n, q) and outputs, K is (i, channel)
//   CONV_INPUT     x = what windows add to x @ w:    rows are (n, l) and channels, K is (i, output)
//   CONV_WEIGHT    w = y^T @ windows of x:           rows are outputs and (i, channel), K is (n, q)
//
// Words are adjacent channels or outputs: their numbers are multiples of a word's elements.

#include "conv/conv_factor.h"

FUNCTION Factor factor(GLOBAL const S *x, Ints p, int side, i64 batch, i64 row, i64 k) {
    Factor f;
    f.x = x;
    f.row = row;
    f.k = k;
    f.p = p;
    return f;
}

// A row or an element of K in two parts: the sample and what follows, or the element of the window and its channel.
typedef struct {
    idx first, then;
} Two;

#define TWO(at, extent, by) two(at, (idx)(extent), QUOTIENT(at, extent, by))

FUNCTION Two two(idx at, idx extent, idx first) {
    Two t;
    t.first = first;
    t.then = at - first * extent;
    return t;
}

// The position of element (i, channel) of window q of a sample; -1 if there is none.
FUNCTION idx of_window(idx sample, Place q, idx i, idx channel, Ints p) {
    idx l = in_volume(q, PLACE_IN_WINDOW(i), p);
    return l < 0 ? (idx)-1 : (sample * (idx)IN + l) * N_CHANNELS + channel;
}

// The position of an output of the window whose element i is element l of a sample; -1 if there is none.
FUNCTION idx of_element(idx sample, Place l, idx i, idx output, Ints p) {
    idx q = window_at(l, PLACE_IN_WINDOW(i), p);
    return q < 0 ? (idx)-1 : (sample * (idx)OUT + q) * N_OUTPUTS + output;
}

// The position of an element of the factor; -1 if there is none.
FUNCTION idx position(Factor f, int side, int row, int k) {
    Ints p = f.p;
    idx r = (idx)f.row + row, at = (idx)f.k + k;
#if defined(CONV_FORWARD)
    if (side == SIDE_B) return r * (WINDOW * N_CHANNELS) + at;
    Two window = TWO(r, OUT, BY_OUT), element = TWO(at, N_CHANNELS, BY_N_CHANNELS);
    return of_window(window.first, PLACE_OUT(window.then), element.first, element.then, p);
#elif defined(CONV_INPUT)
    Two element = TWO(at, N_OUTPUTS, BY_N_OUTPUTS);
    if (side == SIDE_B) return (element.then * WINDOW + element.first) * N_CHANNELS + r;
    Two l = TWO(r, IN, BY_IN);
    return of_element(l.first, PLACE_IN(l.then), element.first, element.then, p);
#else
    if (side == SIDE_A) return at * N_OUTPUTS + r;
    Two window = TWO(at, OUT, BY_OUT), element = TWO(r, N_CHANNELS, BY_N_CHANNELS);
    return of_window(window.first, PLACE_OUT(window.then), element.first, element.then, p);
#endif
}

FUNCTION int has_element(Factor f, int side, int row, int k) { return position(f, side, row, k) >= 0; }

FUNCTION GLOBAL const S *element(Factor f, int side, int row, int k) { return f.x + position(f, side, row, k); }

#ifdef WORDS_TOGETHER
// The parts of positions that do not depend on the step along K. For a factor with a row for each word: the position and the
// coordinates of the first element of the row's window (CONV_FORWARD), or of the last window of the row's element (CONV_INPUT), which
// may lie outside of the volume. For a factor with one row: its channel, and its distance from the window's first element.
typedef struct {
    GLOBAL const S *x;
    Ints p;
    idx row, k, k_step;
    idx at[WORDS_TOGETHER];
    Place place[WORDS_TOGETHER];
} Words;

// A position in volumes [n, D, H, W, channels] from its coordinates.
#define POSITION(sample, at, ALONG, channels) \
    ((((sample) * ALONG(DEPTH) + (at).z) * ALONG(HEIGHT) + (at).y) * ALONG(WIDTH) + (at).x) * (channels)

// 1 if the coordinates are within volumes of these extents.
#ifdef FLAT
#define IS_WITHIN(at, ALONG) (((at).y >= 0) & ((at).y < ALONG(HEIGHT)) & ((at).x >= 0) & ((at).x < ALONG(WIDTH)))
#else
#define IS_WITHIN(at, ALONG) \
    (((at).z >= 0) & ((at).z < ALONG(DEPTH)) & ((at).y >= 0) & ((at).y < ALONG(HEIGHT)) & ((at).x >= 0) & ((at).x < ALONG(WIDTH)))
#endif

// The distance of a window's element from the first one.
FUNCTION Place distance_of(Place i, Ints p) {
    Place by;
    by.z = i.z * DILATION_ALONG(DEPTH);
    by.y = i.y * DILATION_ALONG(HEIGHT);
    by.x = i.x * DILATION_ALONG(WIDTH);
    return by;
}

FUNCTION Place plus(Place p, Place by, int sign) {
    p.z += sign * by.z;
    p.y += sign * by.y;
    p.x += sign * by.x;
    return p;
}

FUNCTION Place corner_of(Place q, Ints p) {
    Place corner;
    corner.z = q.z * STRIDE_ALONG(DEPTH) - PADDING_ALONG(DEPTH);
    corner.y = q.y * STRIDE_ALONG(HEIGHT) - PADDING_ALONG(HEIGHT);
    corner.x = q.x * STRIDE_ALONG(WIDTH) - PADDING_ALONG(WIDTH);
    return corner;
}

FUNCTION Words words(Factor f, int side, int row, int k, int row_step, int k_step) {
    Ints p = f.p;
    Words w;
    w.x = f.x;
    w.p = p;
    w.row = (idx)f.row + row;
    w.k = (idx)f.k + k;
    w.k_step = k_step;
#pragma unroll
    for (int i = 0; i < WORDS_TOGETHER; i++) {
        idx r = w.row + i * row_step;
#if defined(CONV_FORWARD)
        if (side == SIDE_A) {
            Two window = TWO(r, OUT, BY_OUT);
            w.place[i] = corner_of(PLACE_OUT(window.then), p);
            w.at[i] = POSITION(window.first, w.place[i], IN_ALONG, N_CHANNELS);
        } else w.at[i] = r * (WINDOW * N_CHANNELS);
#elif defined(CONV_INPUT)
        if (side == SIDE_A) {
            Two l = TWO(r, IN, BY_IN);
            w.place[i] = PLACE_IN(l.then);
#ifdef STRIDED
            w.at[i] = l.first;
#else
            w.place[i].z += PADDING_ALONG(DEPTH);
            w.place[i].y += PADDING_ALONG(HEIGHT);
            w.place[i].x += PADDING_ALONG(WIDTH);
            w.at[i] = POSITION(l.first, w.place[i], OUT_ALONG, N_OUTPUTS);
#endif
        }
#else
        if (side == SIDE_B) {
            Two element = TWO(r, N_CHANNELS, BY_N_CHANNELS);
            w.at[i] = element.then;
            w.place[i] = distance_of(PLACE_IN_WINDOW(element.first), p);
        }
#endif
    }
    return w;
}

typedef idx Offset;

// The position of word i, `k` further along K; -1 if it is not in memory.
FUNCTION Offset word_at(Words w, int side, int i, int k) {
    Ints p = w.p;
    idx at = w.k + k;
#if defined(CONV_FORWARD)
    if (side == SIDE_B) return w.at[i] + at;
    Two element = TWO(at, N_CHANNELS, BY_N_CHANNELS);
    Place by = distance_of(PLACE_IN_WINDOW(element.first), p), to = plus(w.place[i], by, 1);
    return IS_WITHIN(to, IN_ALONG) ? w.at[i] + (POSITION(0, by, IN_ALONG, N_CHANNELS) + element.then) : (idx)-1;
#elif defined(CONV_INPUT)
    if (side == SIDE_A) {
        Two element = TWO(at, N_OUTPUTS, BY_N_OUTPUTS);
#ifdef STRIDED
        return of_element(w.at[i], w.place[i], element.first, element.then, p);
#else
        Place by = distance_of(PLACE_IN_WINDOW(element.first), p), to = plus(w.place[i], by, -1);
        return IS_WITHIN(to, OUT_ALONG) ? w.at[i] - (POSITION(0, by, OUT_ALONG, N_OUTPUTS) - element.then) : (idx)-1;
#endif
    }
    Two element = TWO(at + i * w.k_step, N_OUTPUTS, BY_N_OUTPUTS);
    return (element.then * WINDOW + element.first) * N_CHANNELS + w.row;
#else
    at += i * w.k_step;
    if (side == SIDE_A) return at * N_OUTPUTS + w.row;
    Two window = TWO(at, OUT, BY_OUT);
    Place to = plus(corner_of(PLACE_OUT(window.then), p), w.place[i], 1);
    return IS_WITHIN(to, IN_ALONG) ? POSITION(window.first, to, IN_ALONG, N_CHANNELS) + w.at[i] : (idx)-1;
#endif
}
#endif

#include "matrix/again.h"

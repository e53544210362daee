// Convolutions whose groups have one channel each. They are bound by memory. x is [n, g, IN], w [g, outputs, WINDOW] and y [n, g,
// outputs, OUT], all contiguous. conv.h has the extents and the windows.
//
//   depthwise                a thread computes a strip of y: STRIP adjacent elements of a line
//   depthwise_input          a thread computes an element of the gradient of x
//   depthwise_weight         a group adds up a part of the gradient of the weights of one output
//   depthwise_weight_join    a thread adds up the parts of one weight
//
// Elements that are not in memory add nothing.
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of x, w and y
// ACC: f32 or f64, dtype of the arithmetic
// STRIP: 1 .. 8, elements of a strip
// STRIP_WORD: u16 .. u32x4, type of a strip; not defined unless lines of y consist of whole strips
// KERNEL_W, STRIDE_W, DILATION_W: 1.., extent, stride and dilation of windows along a line
// KERNEL_Z, KERNEL_Y: 1.., other extents of a window, for depthwise_weight
// TURNED: flag, windows are turned: depthwise computes the gradient of x
// BIAS: flag, depthwise adds a bias
// WIDE: flag, positions have 64 bits

#include "conv.h"

typedef STORAGE(T) S;
typedef union {
#ifdef STRIP_WORD
    STRIP_WORD word;
#endif
    S each[STRIP];
} Strip;

// Elements of a line that the windows of a strip have.
#define SPAN ((STRIP - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

// A strip: strip `strip` of line (z, y) of the volume of output `o`, of a group's channel `channel`.
typedef struct {
    idx sample, channel, o, z, y, strip;
} At;

// strips: strips of a line; lines: lines of a volume; outputs: outputs of all groups; each with its divider.
#define N_STRIPS p.v[0]
#define N_LINES p.v[1]
#define N_ALL p.v[2]
#define BY_STRIPS p.v[3]
#define BY_LINES p.v[4]
#define BY_ALL p.v[5]

FUNCTION At strip_of(idx number, Ints p, Extents e) {
    At at;
    idx row = QUOTIENT(number, N_STRIPS, BY_STRIPS), plane = QUOTIENT(row, N_LINES, BY_LINES);
    idx line = row - plane * (idx)N_LINES;
    at.strip = number - row * (idx)N_STRIPS;
    at.sample = QUOTIENT(plane, N_ALL, BY_ALL);
    at.o = plane - at.sample * (idx)N_ALL;
    at.channel = QUOTIENT(at.o, N_OUTPUTS, BY_OUTPUTS);
#ifdef FLAT
    at.z = 0;
    at.y = line;
#else
    at.z = QUOTIENT(line, OUT_ALONG(HEIGHT), BY_HEIGHT);
    at.y = line - at.z * OUT_ALONG(HEIGHT);
#endif
    return at;
}

// The line of x that line (i_z, i_y) of the strip's windows is on; -1 if it is outside.
FUNCTION idx line_of(At at, idx i_z, idx i_y, Extents e) {
    idx y = ELEMENT(at.y, i_y, HEIGHT);
    int is_inside = y >= 0 && y < IN_ALONG(HEIGHT);
#ifdef FLAT
    idx line = y;
#else
    idx z = ELEMENT(at.z, i_z, DEPTH), line = z * IN_ALONG(HEIGHT) + y;
    is_inside = is_inside && z >= 0 && z < IN_ALONG(DEPTH);
#endif
    return is_inside ? ((at.sample * (idx)N_GROUPS + at.channel) * IN_ALONG(DEPTH)) * IN_ALONG(HEIGHT) + line : (idx)-1;
}

// The elements of a line of x from `first` on. Those outside are 0.
FUNCTION void read_line(A *v, GLOBAL const S *line, idx first, Extents e) {
#pragma unroll
    for (int i = 0; i < SPAN; i++) v[i] = first + i >= 0 && first + i < IN_ALONG(WIDTH) ? LOAD(T, line, first + i) : (A)0;
}

#define IS_INSIDE(first, i) ((first) + (i) >= 0 && (first) + (i) < IN_ALONG(WIDTH))

// This thread's items, of p.v[6].
#define EACH_ITEM(number) for (i64 number = GROUP * THREADS + LANE; number < p.v[6]; number += GROUPS * THREADS)

FUNCTION void convolve(GLOBAL const S *x, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *y, Ints p, Extents e, i64 number) {
    At at = strip_of((idx)number, p, e);
    A sums[STRIP];
    A start = 0;
#ifdef BIAS
    start = LOAD(T, bias, (at.sample * (idx)N_GROUPS + at.channel) * p.v[7] + (at.o - at.channel * N_OUTPUTS) * p.v[8]);
#endif
#pragma unroll
    for (int r = 0; r < STRIP; r++) sums[r] = start;
    idx first = ELEMENT(at.strip * STRIP, 0, WIDTH);
    for (idx i_z = 0; i_z < KERNEL_ALONG(DEPTH); i_z++)
        for (idx i_y = 0; i_y < KERNEL_ALONG(HEIGHT); i_y++) {
            idx line = line_of(at, i_z, i_y, e), i = (i_z * KERNEL_ALONG(HEIGHT) + i_y) * KERNEL_W;
            if (line < 0) continue;
            A v[SPAN];
            read_line(v, x + line * (i64)IN_ALONG(WIDTH), first, e);
#pragma unroll
            for (int k = 0; k < KERNEL_W; k++) {
#ifdef TURNED
                A factor = LOAD(T, w, at.o * WINDOW + (WINDOW - 1 - i - k));
#else
                A factor = LOAD(T, w, at.o * WINDOW + i + k);
#endif
#pragma unroll
                for (int r = 0; r < STRIP; r++) {
                    int element = r * STRIDE_W + k * DILATION_W;
                    if (IS_INSIDE(first, element)) sums[r] = fma_(v[element], factor, sums[r]);
                }
            }
        }
    GLOBAL S *to = y + (number - at.strip) / N_STRIPS * OUT_ALONG(WIDTH) + at.strip * STRIP;
#ifdef STRIP_WORD
    Strip out;
#pragma unroll
    for (int r = 0; r < STRIP; r++) STORE(T, out.each, r, sums[r]);
    *(GLOBAL STRIP_WORD *)to = out.word;
#else
#pragma unroll
    for (int r = 0; r < STRIP; r++)
        if (at.strip * STRIP + r < OUT_ALONG(WIDTH)) STORE(T, to, r, sums[r]);
#endif
}

KERNEL(depthwise)(GLOBAL const S *x, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *y, Ints p, Extents e) {
    EACH_ITEM(number) convolve(x, w, bias, y, p, e, number);
}

// `x` is [n, g, outputs, OUT], and `y` [n, g, IN].
KERNEL(depthwise_input)(GLOBAL const S *x, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *y, Ints p, Extents e) {
    EACH_ITEM(number) {
        idx plane = QUOTIENT((idx)number, IN, BY_IN), l = (idx)number - plane * (idx)IN;
        idx sample = QUOTIENT(plane, N_GROUPS, BY_ALL), channel = plane - sample * (idx)N_GROUPS;
        Place place = PLACE_IN(l);
        A sum = 0;
#ifdef BIAS
        sum = LOAD(T, bias, plane * p.v[7]);
#endif
        for (idx i = 0; i < WINDOW; i++) {
            idx q = window_at(place, PLACE_IN_WINDOW(i), e);
            if (q < 0) continue;
            for (idx r = 0; r < N_OUTPUTS; r++) {
                A v = LOAD(T, x, (plane * (i64)N_OUTPUTS + r) * OUT + q);
                sum = fma_(v, LOAD(T, w, (channel * N_OUTPUTS + r) * WINDOW + i), sum);
            }
        }
        STORE(T, y, number, sum);
    }
}

#ifdef KERNEL_Y
#define SUMS (KERNEL_Z * KERNEL_Y * KERNEL_W)

// GROUP: the output. GROUP_Y: the part. p.v[6]: strips of a part; p.v[7]: strips of an output in all samples. sums: [parts, outputs,
// WINDOW].
KERNEL(depthwise_weight)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL A *sums, Ints p, Extents e) {
    JOINS(SUMS);
    A own[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) own[i] = 0;
    i64 end = (GROUP_Y + 1) * p.v[6] < p.v[7] ? (GROUP_Y + 1) * p.v[6] : p.v[7];
    for (i64 at_part = GROUP_Y * p.v[6] + LANE; at_part < end; at_part += THREADS) {
        // Strips of one output: the sample, then the strip within its volume.
        idx strips = (idx)(N_STRIPS * N_LINES), sample = QUOTIENT((idx)at_part, strips, p.v[8]);
        i64 number = (sample * N_ALL + GROUP) * strips + ((idx)at_part - sample * strips);
        At at = strip_of((idx)number, p, e);
        idx column = at.strip * STRIP, first = ELEMENT(column, 0, WIDTH);
        GLOBAL const S *from = g + (number - at.strip) / N_STRIPS * OUT_ALONG(WIDTH) + column;
        A dy[STRIP];
#pragma unroll
        for (int r = 0; r < STRIP; r++) dy[r] = column + r < OUT_ALONG(WIDTH) ? LOAD(T, from, r) : (A)0;
#pragma unroll
        for (int i_z = 0; i_z < KERNEL_Z; i_z++)
#pragma unroll
            for (int i_y = 0; i_y < KERNEL_Y; i_y++) {
                idx line = line_of(at, i_z, i_y, e);
                if (line < 0) continue;
                A v[SPAN];
                read_line(v, x + line * (i64)IN_ALONG(WIDTH), first, e);
#pragma unroll
                for (int k = 0; k < KERNEL_W; k++)
#pragma unroll
                    for (int r = 0; r < STRIP; r++) {
                        int element = r * STRIDE_W + k * DILATION_W, i = (i_z * KERNEL_Y + i_y) * KERNEL_W + k;
                        if (IS_INSIDE(first, element) && column + r < OUT_ALONG(WIDTH)) own[i] = fma_(v[element], dy[r], own[i]);
                    }
            }
    }
    team_join(own, SUMS, SIDE(SUMS), JOIN_TO_SUM);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        if (LANE == i % THREADS) sums[(GROUP_Y * N_ALL + GROUP) * SUMS + i] = own[i];
}
#endif

// p.v[6]: weights; p.v[7]: parts.
KERNEL(depthwise_weight_join)(GLOBAL const A *sums, GLOBAL S *dw, Ints p) {
    EACH_ITEM(number) {
        A sum = 0;
        for (i64 part = 0; part < p.v[7]; part++) sum += sums[part * p.v[6] + number];
        STORE(T, dw, number, sum);
    }
}

// Convolutions whose groups have one channel each. They are bound by memory. x is [n, g, IN], w [g, outputs, WINDOW] and y [n, g,
// outputs, OUT], all contiguous. conv.h has the extents and the windows.
//
//   depthwise                a thread computes a block of y: a strip of STRIP adjacent elements in each of LINES lines
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
// LINES: 1 .. 4, lines of a block; volumes and windows with more than one are FLAT, and windows have neither stride nor dilation along H
// KERNEL_W, STRIDE_W, DILATION_W: 1.., extent, stride and dilation of windows along a line
// LOW_W: 0.., elements of the padding before a line
// LINE_WORD: u16 .. u32x4, type of STRIP elements of x; not defined unless lines of x consist of whole words, one for each strip of y at
//     the same place, and windows have neither stride nor dilation along W
// KERNEL_Y: 1.., extent of a window along H, for several LINES and for depthwise_weight
// KERNEL_Z: 1.., extent of a window along D, for depthwise_weight
// TURNED: flag, windows are turned: depthwise computes the gradient of x
// BIAS: flag, depthwise adds a bias
// ITEMS: items of all threads, but for depthwise_weight
// N_STRIPS, N_LINES, N_ALL: strips of a line, lines of a volume, or blocks of them, and outputs of all groups
// BY_GROUPS: for depthwise_input, divider of groups for QUOTIENT
// BIAS_STRIDES: strides of sample and channel
// PART_BLOCKS, OUTPUT_BLOCKS, BY_BLOCKS: for depthwise_weight: blocks of a part and of an output in all samples; the divider of those of a
//     volume
// N_PARTS: for depthwise_weight_join, parts
// WIDE: flag, positions have 64 bits

#include "conv/conv.h"

typedef STORAGE(T) S;
typedef union {
#ifdef STRIP_WORD
    STRIP_WORD word;
#endif
    S each[STRIP];
} Strip;

// Elements of a line that the windows of a strip have.
#define SPAN ((STRIP - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

// This thread's items.
#define EACH_ITEM(number) for (i64 number = GROUP * THREADS + LANE; number < ITEMS; number += GROUPS * THREADS)

// A block: strip `strip` of the lines from (z, y) on, of the volume of output `o`, of a group's channel `channel`.
typedef struct {
    idx sample, channel, o, z, y, strip;
} At;

#ifdef N_STRIPS
FUNCTION At strip_of(idx number, Ints p) {
    At at;
    idx row = QUOTIENT(number, N_STRIPS, BY_N_STRIPS), plane = QUOTIENT(row, N_LINES, BY_N_LINES);
    idx line = row - plane * N_LINES;
    at.strip = number - row * N_STRIPS;
    at.sample = QUOTIENT(plane, N_ALL, BY_N_ALL);
    at.o = plane - at.sample * N_ALL;
    at.channel = QUOTIENT(at.o, N_OUTPUTS, BY_N_OUTPUTS);
#ifdef FLAT
    at.z = 0;
    at.y = line * LINES;
#else
    at.z = QUOTIENT(line, OUT_ALONG(HEIGHT), BY_HEIGHT);
    at.y = line - at.z * OUT_ALONG(HEIGHT);
#endif
    return at;
}

// The position of the strip in line `j` of a block.
FUNCTION i64 position_of(At at, int j, Ints p) {
    i64 plane = at.sample * N_ALL + at.o;
    return ((plane * OUT_ALONG(DEPTH) + at.z) * OUT_ALONG(HEIGHT) + (at.y + j)) * OUT_ALONG(WIDTH) + at.strip * STRIP;
}

// 1 if the volume has line `j` of a block. Its first line is there.
#define HAS_LINE(at, j) ((j) == 0 || (at).y + (j) < OUT_ALONG(HEIGHT))

// The line of x that line (i_z, i_y) of the windows of a block's first line is on; -1 if it is outside.
FUNCTION idx line_of(At at, idx i_z, idx i_y, Ints p) {
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

// Element `i` from `first` on is in the line. Those of its word always are.
#ifdef LINE_WORD
typedef union {
    LINE_WORD word;
    S each[STRIP];
} LineWord;
#define IS_IN_WORD(i) ((i) >= LOW_W && (i) < LOW_W + STRIP)
#else
#define IS_IN_WORD(i) 0
#endif
#define IS_INSIDE(first, i) (IS_IN_WORD(i) || ((first) + (i) >= 0 && (first) + (i) < IN_ALONG(WIDTH)))

// Elements of a line of x as they are in memory: those of the word, and the others.
typedef struct {
#ifdef LINE_WORD
    LineWord word;
#endif
    S each[SPAN];
} Line;

// The elements of a line of x from `first` on, as far as it has them.
FUNCTION void read_line(Line *l, GLOBAL const S *line, idx first, Ints p) {
#ifdef LINE_WORD
    l->word.word = *(GLOBAL const LINE_WORD *)(line + (first + LOW_W));
#endif
#pragma unroll
    for (int i = 0; i < SPAN; i++)
        if (!IS_IN_WORD(i) && IS_INSIDE(first, i)) l->each[i] = line[first + i];
}

// The elements of a line that was read. Those outside are 0.
FUNCTION void numbers_of_line(A *v, Line l, idx first, Ints p) {
#ifdef LINE_WORD
#pragma unroll
    for (int i = 0; i < STRIP; i++) v[LOW_W + i] = LOAD(T, l.word.each, i);
#endif
#pragma unroll
    for (int i = 0; i < SPAN; i++)
        if (!IS_IN_WORD(i)) v[i] = IS_INSIDE(first, i) ? LOAD(T, l.each, i) : (A)0;
}

#ifdef KERNEL_Y
// The lines of x that the windows of a block have in a slice. All of them are read before the first is used: another line is read in
// place of one that is not there.
#define BLOCK_LINES (LINES - 1 + KERNEL_Y)
#define READ_BLOCK(lines, are_there, at, i_z) \
    Line lines[BLOCK_LINES]; \
    int are_there[BLOCK_LINES]; \
    _Pragma("unroll") for (int l = 0; l < BLOCK_LINES; l++) { \
        idx line = line_of(at, i_z, l, p); \
        are_there[l] = line >= 0; \
        read_line(&lines[l], x + (line < 0 ? (idx)0 : line) * (i64)IN_ALONG(WIDTH), first, p); \
    }
#endif

#ifdef ITEMS
FUNCTION void convolve(GLOBAL const S *x, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *y, Ints p, i64 number) {
    At at = strip_of((idx)number, p);
    A sums[LINES][STRIP];
    A start = 0;
#ifdef BIAS
    start = LOAD(T, bias, (at.sample * (idx)N_GROUPS + at.channel) * BIAS_STRIDES(0) + (at.o - at.channel * N_OUTPUTS) * BIAS_STRIDES(1));
#endif
#pragma unroll
    for (int j = 0; j < LINES; j++)
#pragma unroll
        for (int r = 0; r < STRIP; r++) sums[j][r] = start;
    idx first = ELEMENT(at.strip * STRIP, 0, WIDTH);
#if LINES > 1
    A factors[KERNEL_Y * KERNEL_W];
#pragma unroll
    for (int i = 0; i < KERNEL_Y * KERNEL_W; i++) {
#ifdef TURNED
        factors[i] = LOAD(T, w, at.o * WINDOW + (KERNEL_Y * KERNEL_W - 1 - i));
#else
        factors[i] = LOAD(T, w, at.o * WINDOW + i);
#endif
    }
    // A line of x is read once for all lines of y that have it in their windows.
    READ_BLOCK(lines, are_there, at, 0);
#pragma unroll
    for (int l = 0; l < BLOCK_LINES; l++) {
        A v[SPAN];
        if (!are_there[l]) continue;
        numbers_of_line(v, lines[l], first, p);
#pragma unroll
        for (int j = 0; j < LINES; j++) {
            if (l - j < 0 || l - j >= KERNEL_Y) continue;
#pragma unroll
            for (int k = 0; k < KERNEL_W; k++)
#pragma unroll
                for (int r = 0; r < STRIP; r++) {
                    int element = r * STRIDE_W + k * DILATION_W;
                    if (IS_INSIDE(first, element)) sums[j][r] = fma_(v[element], factors[(l - j) * KERNEL_W + k], sums[j][r]);
                }
        }
    }
#else
    for (idx i_z = 0; i_z < KERNEL_ALONG(DEPTH); i_z++)
        for (idx i_y = 0; i_y < KERNEL_ALONG(HEIGHT); i_y++) {
            idx line = line_of(at, i_z, i_y, p), i = (i_z * KERNEL_ALONG(HEIGHT) + i_y) * KERNEL_W;
            if (line < 0) continue;
            A v[SPAN];
            Line l;
            read_line(&l, x + line * (i64)IN_ALONG(WIDTH), first, p);
            numbers_of_line(v, l, first, p);
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
                    if (IS_INSIDE(first, element)) sums[0][r] = fma_(v[element], factor, sums[0][r]);
                }
            }
        }
#endif
#pragma unroll
    for (int j = 0; j < LINES; j++) {
        if (!HAS_LINE(at, j)) continue;
        GLOBAL S *to = y + position_of(at, j, p);
#ifdef STRIP_WORD
        Strip out;
#pragma unroll
        for (int r = 0; r < STRIP; r++) STORE(T, out.each, r, sums[j][r]);
        *(GLOBAL STRIP_WORD *)to = out.word;
#else
#pragma unroll
        for (int r = 0; r < STRIP; r++)
            if (at.strip * STRIP + r < OUT_ALONG(WIDTH)) STORE(T, to, r, sums[j][r]);
#endif
    }
}

KERNEL(depthwise)(GLOBAL const S *x, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *y, Ints p) {
    EACH_ITEM(number) convolve(x, w, bias, y, p, number);
}
#endif

#ifdef KERNEL_Z
#define SUMS (KERNEL_Z * KERNEL_Y * KERNEL_W)
#ifdef STRIP_WORD
#define IS_COLUMN(x) 1
#else
#define IS_COLUMN(x) ((x) < OUT_ALONG(WIDTH))
#endif

// GROUP: the output. GROUP_Y: the part. sums: [parts, outputs, WINDOW].
KERNEL(depthwise_weight)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL A *sums, Ints p) {
    LET_NEXT_START();
    JOINS(SUMS);
    A own[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) own[i] = 0;
    i64 end = (GROUP_Y + 1) * PART_BLOCKS < OUTPUT_BLOCKS ? (GROUP_Y + 1) * PART_BLOCKS : OUTPUT_BLOCKS;
    for (i64 at_part = GROUP_Y * PART_BLOCKS + LANE; at_part < end; at_part += THREADS) {
        // Blocks of one output: the sample, then the block within its volume.
        idx strips = N_STRIPS * N_LINES, sample = QUOTIENT((idx)at_part, strips, BY_BLOCKS);
        i64 number = (sample * N_ALL + GROUP) * strips + ((idx)at_part - sample * strips);
        At at = strip_of((idx)number, p);
        idx column = at.strip * STRIP, first = ELEMENT(column, 0, WIDTH);
        A dy[LINES][STRIP];
#pragma unroll
        for (int j = 0; j < LINES; j++) {
            if (!HAS_LINE(at, j)) continue;
            GLOBAL const S *from = g + position_of(at, j, p);
#ifdef STRIP_WORD
            Strip in;
            in.word = *(GLOBAL const STRIP_WORD *)from;
#pragma unroll
            for (int r = 0; r < STRIP; r++) dy[j][r] = LOAD(T, in.each, r);
#else
#pragma unroll
            for (int r = 0; r < STRIP; r++) dy[j][r] = column + r < OUT_ALONG(WIDTH) ? LOAD(T, from, r) : (A)0;
#endif
        }
#pragma unroll
        for (int i_z = 0; i_z < KERNEL_Z; i_z++) {
            READ_BLOCK(lines, are_there, at, i_z);
#pragma unroll
            for (int l = 0; l < BLOCK_LINES; l++) {
                A v[SPAN];
                if (!are_there[l]) continue;
                numbers_of_line(v, lines[l], first, p);
#pragma unroll
                for (int j = 0; j < LINES; j++) {
                    if (l - j < 0 || l - j >= KERNEL_Y || !HAS_LINE(at, j)) continue;
#pragma unroll
                    for (int k = 0; k < KERNEL_W; k++)
#pragma unroll
                        for (int r = 0; r < STRIP; r++) {
                            int element = r * STRIDE_W + k * DILATION_W, i = (i_z * KERNEL_Y + (l - j)) * KERNEL_W + k;
                            if (IS_INSIDE(first, element) && IS_COLUMN(column + r)) own[i] = fma_(v[element], dy[j][r], own[i]);
                        }
                }
            }
        }
    }
    team_join(own, SUMS, SIDE(SUMS), JOIN_TO_SUM);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        if (LANE == i % THREADS) sums[(GROUP_Y * N_ALL + GROUP) * SUMS + i] = own[i];
}
#endif
#endif

#ifdef BY_GROUPS
// `x` is [n, g, outputs, OUT], and `y` [n, g, IN].
KERNEL(depthwise_input)(GLOBAL const S *x, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *y, Ints p) {
    EACH_ITEM(number) {
        idx plane = QUOTIENT((idx)number, IN, BY_IN), l = (idx)number - plane * (idx)IN;
        idx sample = QUOTIENT(plane, N_GROUPS, BY_GROUPS), channel = plane - sample * (idx)N_GROUPS;
        Place place = PLACE_IN(l);
        A sum = 0;
#ifdef BIAS
        sum = LOAD(T, bias, plane * BIAS_STRIDES(0));
#endif
        for (idx i = 0; i < WINDOW; i++) {
            idx q = window_at(place, PLACE_IN_WINDOW(i), p);
            if (q < 0) continue;
            for (idx r = 0; r < N_OUTPUTS; r++) {
                A v = LOAD(T, x, (plane * (i64)N_OUTPUTS + r) * OUT + q);
                sum = fma_(v, LOAD(T, w, (channel * N_OUTPUTS + r) * WINDOW + i), sum);
            }
        }
        STORE(T, y, number, sum);
    }
}
#endif

#ifdef N_PARTS
KERNEL(depthwise_weight_join)(GLOBAL const A *sums, GLOBAL S *dw, Ints p) {
    AWAIT_PREVIOUS();
    EACH_ITEM(number) {
        A sum = 0;
#pragma unroll 8
        for (i64 part = 0; part < N_PARTS; part++) sum += sums[part * ITEMS + number];
        STORE(T, dw, number, sum);
    }
}
#endif

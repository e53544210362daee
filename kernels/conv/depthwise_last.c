// Convolutions whose groups have one channel and one output each, where channels are last in memory, over one slice. They are bound by
// memory. x is [n, IN_HEIGHT, IN_WIDTH, channels], w [channels, KERNEL_Y, KERNEL_W] and y [n, OUT_HEIGHT, OUT_WIDTH, channels], all dense.
// Adjacent threads have adjacent words of channels.
//
//   depthwise_last                a thread computes a word of channels in a block of y: STRIP adjacent columns of each of LINES lines
//   depthwise_last_input          a thread computes a word of channels in a block of the gradient of x: the elements between the starts of
//                                 STRIP adjacent windows of a line, and those of the next line of windows
//   depthwise_last_weight         a group adds up a part of the gradients of the weights of COLUMNS words of channels
//   depthwise_last_weight_join    the threads of a column add up the parts of one weight
//
// Elements that are not in memory add nothing.
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of x, w and y
// ACC: f32 or f64, dtype of the arithmetic
// VECTOR: 1 .. 8, channels of a word
// WORD: u16 .. u32x4, type of a word
// STRIP: 1 .., columns of y, or windows, of a block
// LINES: 1 .., lines of a block of y
// KERNEL_Y, KERNEL_W, STRIDE_Y, STRIDE_W, DILATION_Y, DILATION_W: 1.., extents, strides and dilations of windows
// COLUMNS: power of 2 up to THREADS, for depthwise_last_weight words of a group, and for depthwise_last_weight_join weights of a group
// BIAS: flag, a bias is added
// ITEMS: threads that are needed; weights for depthwise_last_weight_join
// N_WORDS: words of channels
// N_STRIPS, N_LINES: blocks along a line, and along a column
// IN_HEIGHT, IN_WIDTH, OUT_HEIGHT, OUT_WIDTH: extents
// LOW_Y, LOW_W: padding before the first line and column
// FIRST_Y, FIRST_W: for depthwise_last_input, the windows whose starts are in the padding: padding / stride
// BIAS_STRIDE: stride of the bias [n channels]
// PART, ALL: for depthwise_last_weight, strips of a part and of all samples
// N_PARTS: for depthwise_last_weight_join, parts
// WIDE: flag, positions have 64 bits

#include "flags.h"

typedef STORAGE(T) S;
typedef union {
    WORD all;
    S each[VECTOR];
    WORD_PARTS
} Word;

#define EACH_OF_WORD(c) _Pragma("unroll") for (int c = 0; c < VECTOR; c++)
#define EACH_ITEM(number) for (i64 number = GROUP * THREADS + LANE; number < ITEMS; number += GROUPS * THREADS)
#define IS_IN(at, extent) ((at) >= 0 && (at) < (extent))
#define WITHIN(at, extent) ((at) < 0 ? (idx)0 : (at) < (extent) ? (at) : (extent) - 1)
// Columns of x that the windows of a strip have.
#define SPAN ((STRIP - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1)

FUNCTION void numbers_of_word(A *v, const Word *word) {
    EACH_OF_WORD(c) v[c] = LOAD(T, word->each, c);
}

// The words `word` of `count` columns of a line from `first` on, all of which are read before the first is used. Another column is read in
// place of one that is not there.
FUNCTION void read_columns(Word *read, GLOBAL const S *line, idx word, idx words, idx first, int count, idx width) {
#pragma unroll
    for (int e = 0; e < count; e++) SET_WORD(read[e], ((GLOBAL const WORD *)line)[WITHIN(first + e, width) * words + word]);
}

#ifdef N_LINES
// A block: word of channels, strip, line of blocks and sample.
typedef struct {
    idx word, strip, line, sample;
} At;

FUNCTION At block_of(idx number, Ints p) {
    At at;
    idx rest = QUOTIENT(number, N_WORDS, BY_N_WORDS), line = QUOTIENT(rest, N_STRIPS, BY_N_STRIPS);
    at.word = number - rest * N_WORDS;
    at.strip = rest - line * N_STRIPS;
    at.sample = QUOTIENT(line, N_LINES, BY_N_LINES);
    at.line = line - at.sample * N_LINES;
    return at;
}

// The weights of a word of channels, which are adjacent.
typedef union {
    WORD words[KERNEL_Y * KERNEL_W];
    S each[VECTOR * KERNEL_Y * KERNEL_W];
} Weights;
#define READ_WEIGHTS(weights, w, word) \
    Weights weights; \
    _Pragma("unroll") for (int i = 0; i < KERNEL_Y * KERNEL_W; i++) \
        weights.words[i] = ((GLOBAL const WORD *)(w))[(word) * (KERNEL_Y * KERNEL_W) + i]
#define WEIGHT_OF(weights, c, i_y, i_w) LOAD(T, weights.each, (c) * (KERNEL_Y * KERNEL_W) + (i_y) * KERNEL_W + (i_w))

FUNCTION void starts_of(A *start, GLOBAL const S *bias, At at, Ints p) {
    i64 first = ((i64)at.sample * N_WORDS + at.word) * VECTOR;
    EACH_OF_WORD(c) start[c] = IS_SET(BIAS) ? LOAD(T, bias, (first + c) * BIAS_STRIDE) : (A)0;
}

// Writes the words of a line from column `first` on that are in it.
FUNCTION void write_columns(GLOBAL S *line, const A *sums, idx word, idx words, idx first, int count, idx width) {
#pragma unroll
    for (int e = 0; e < count; e++) {
        Word out;
        if (!IS_IN(first + e, width)) continue;
        EACH_OF_WORD(c) STORE(T, out.each, c, sums[e * VECTOR + c]);
        ((GLOBAL WORD *)line)[(first + e) * words + word] = out.all;
    }
}

#ifdef LINES
KERNEL(depthwise_last)(GLOBAL const S *x, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *y, Ints p) {
    EACH_ITEM(number) {
        At at = block_of((idx)number, p);
        idx channels = N_WORDS * VECTOR, first = at.strip * (STRIP * STRIDE_W) - LOW_W, top = at.line * (LINES * STRIDE_Y) - LOW_Y;
        READ_WEIGHTS(weights, w, at.word);
        A sums[LINES][STRIP * VECTOR], start[VECTOR];
        starts_of(start, bias, at, p);
#pragma unroll
        for (int j = 0; j < LINES; j++)
#pragma unroll
            for (int r = 0; r < STRIP; r++) EACH_OF_WORD(c) sums[j][r * VECTOR + c] = start[c];
        // A line of x is read once for all lines of y that have it in their windows.
#pragma unroll
        for (int l = 0; l < (LINES - 1) * STRIDE_Y + (KERNEL_Y - 1) * DILATION_Y + 1; l++) {
            Word read[SPAN];
            if (!IS_IN(top + l, IN_HEIGHT)) continue;
            read_columns(read, x + ((i64)at.sample * IN_HEIGHT + (top + l)) * IN_WIDTH * channels, at.word, N_WORDS, first, SPAN, IN_WIDTH);
#pragma unroll
            for (int e = 0; e < SPAN; e++) {
                A v[VECTOR];
                if (!IS_IN(first + e, IN_WIDTH)) continue;
                numbers_of_word(v, &read[e]);
#pragma unroll
                for (int j = 0; j < LINES; j++)
#pragma unroll
                    for (int i_y = 0; i_y < KERNEL_Y; i_y++)
#pragma unroll
                        for (int i_w = 0; i_w < KERNEL_W; i_w++)
#pragma unroll
                            for (int r = 0; r < STRIP; r++) {
                                if (j * STRIDE_Y + i_y * DILATION_Y != l || r * STRIDE_W + i_w * DILATION_W != e) continue;
                                EACH_OF_WORD(c) {
                                    A sum = sums[j][r * VECTOR + c];
                                    sums[j][r * VECTOR + c] = fma_(v[c], WEIGHT_OF(weights, c, i_y, i_w), sum);
                                }
                            }
            }
        }
#pragma unroll
        for (int j = 0; j < LINES; j++) {
            idx line = at.line * LINES + j;
            if (line >= OUT_HEIGHT) continue;
            GLOBAL S *to = y + ((i64)at.sample * OUT_HEIGHT + line) * OUT_WIDTH * channels;
            write_columns(to, sums[j], at.word, N_WORDS, at.strip * STRIP, STRIP, OUT_WIDTH);
        }
    }
}
#endif

#ifdef FIRST_W
// Windows over an element of a block start at most this far before the block's first window, in windows.
#define BEFORE ((KERNEL_W - 1) * DILATION_W / STRIDE_W)
// Columns of x from the start of a block's first window on.
#define INPUTS (STRIP * STRIDE_W)

// `g` is like y, and `dx` like x. Element i of window q is at q STRIDE + i DILATION after the start of the padding: the element e after the
// start of window q is element i of window q + (e - i DILATION) / STRIDE, if that is an integer.
KERNEL(depthwise_last_input)(GLOBAL const S *g, GLOBAL const S *w, GLOBAL const S *bias, GLOBAL S *dx, Ints p) {
    EACH_ITEM(number) {
        At at = block_of((idx)number, p);
        idx channels = N_WORDS * VECTOR, q_w = at.strip * STRIP + FIRST_W, q_y = at.line + FIRST_Y;
        READ_WEIGHTS(weights, w, at.word);
        A start[VECTOR];
        starts_of(start, bias, at, p);
#pragma unroll
        for (int e_y = 0; e_y < STRIDE_Y; e_y++) {
            A sums[INPUTS * VECTOR];
            idx line = q_y * STRIDE_Y - LOW_Y + e_y;
            if (!IS_IN(line, IN_HEIGHT)) continue;
#pragma unroll
            for (int e = 0; e < INPUTS; e++) EACH_OF_WORD(c) sums[e * VECTOR + c] = start[c];
#pragma unroll
            for (int i_y = 0; i_y < KERNEL_Y; i_y++) {
                Word read[STRIP + BEFORE];
                if ((e_y - i_y * DILATION_Y) % STRIDE_Y != 0) continue;
                idx from = q_y + (e_y - i_y * DILATION_Y) / STRIDE_Y;
                if (!IS_IN(from, OUT_HEIGHT)) continue;
                read_columns(read, g + ((i64)at.sample * OUT_HEIGHT + from) * OUT_WIDTH * channels, at.word, N_WORDS, q_w - BEFORE, STRIP + BEFORE,
                             OUT_WIDTH);
#pragma unroll
                for (int r = 0; r < STRIP + BEFORE; r++) {
                    A v[VECTOR];
                    if (!IS_IN(q_w - BEFORE + r, OUT_WIDTH)) continue;
                    numbers_of_word(v, &read[r]);
#pragma unroll
                    for (int i_w = 0; i_w < KERNEL_W; i_w++) {
                        int e = (r - BEFORE) * STRIDE_W + i_w * DILATION_W;
                        if (e < 0 || e >= INPUTS) continue;
                        EACH_OF_WORD(c) sums[e * VECTOR + c] = fma_(v[c], WEIGHT_OF(weights, c, i_y, i_w), sums[e * VECTOR + c]);
                    }
                }
            }
            GLOBAL S *to = dx + ((i64)at.sample * IN_HEIGHT + line) * IN_WIDTH * channels;
            write_columns(to, sums, at.word, N_WORDS, q_w * STRIDE_W - LOW_W, INPUTS, IN_WIDTH);
        }
    }
}
#endif
#endif

#ifdef COLUMNS
#include "reduction/columns.h"
#endif

#ifdef PART
// GROUP: COLUMNS words of channels. GROUP_Y: the part. sums: [parts, channels, WINDOW].
KERNEL(depthwise_last_weight)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL A *sums, Ints p) {
    LET_NEXT_START();
    COLUMN_JOINS(VECTOR);
    A own[KERNEL_Y * KERNEL_W][VECTOR];
#pragma unroll
    for (int i = 0; i < KERNEL_Y * KERNEL_W; i++) EACH_OF_WORD(c) own[i][c] = 0;
    i64 channels = (i64)N_WORDS * VECTOR, last = (GROUP_Y + 1) * PART < ALL ? (GROUP_Y + 1) * PART : ALL;
    idx number = (idx)GROUP * COLUMNS + LANE % COLUMNS, word = number < N_WORDS ? number : N_WORDS - 1;
    for (i64 at = GROUP_Y * PART + WORKER; at < last; at += MEMBERS) {
        idx row = QUOTIENT((idx)at, N_STRIPS, BY_N_STRIPS), sample = QUOTIENT(row, OUT_HEIGHT, BY_OUT_HEIGHT);
        idx strip = (idx)at - row * N_STRIPS, line = row - sample * OUT_HEIGHT;
        idx first = strip * (STRIP * STRIDE_W) - LOW_W, top = line * STRIDE_Y - LOW_Y;
        Word given[STRIP];
        A dy[STRIP][VECTOR];
        read_columns(given, g + (i64)row * OUT_WIDTH * channels, word, N_WORDS, strip * STRIP, STRIP, OUT_WIDTH);
#pragma unroll
        for (int r = 0; r < STRIP; r++) numbers_of_word(dy[r], &given[r]);
#pragma unroll
        for (int i_y = 0; i_y < KERNEL_Y; i_y++) {
            Word read[SPAN];
            idx from = top + i_y * DILATION_Y;
            if (!IS_IN(from, IN_HEIGHT)) continue;
            read_columns(read, x + ((i64)sample * IN_HEIGHT + from) * IN_WIDTH * channels, word, N_WORDS, first, SPAN, IN_WIDTH);
#pragma unroll
            for (int e = 0; e < SPAN; e++) {
                A v[VECTOR];
                if (!IS_IN(first + e, IN_WIDTH)) continue;
                numbers_of_word(v, &read[e]);
#pragma unroll
                for (int i_w = 0; i_w < KERNEL_W; i_w++)
#pragma unroll
                    for (int r = 0; r < STRIP; r++) {
                        if (r * STRIDE_W + i_w * DILATION_W != e || strip * STRIP + r >= OUT_WIDTH) continue;
                        EACH_OF_WORD(c) own[i_y * KERNEL_W + i_w][c] = fma_(v[c], dy[r][c], own[i_y * KERNEL_W + i_w][c]);
                    }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < KERNEL_Y * KERNEL_W; i++) {
        column_sums(own[i], VECTOR, shared);
        if (WORKER == 0 && number < N_WORDS)
            EACH_OF_WORD(c) sums[(GROUP_Y * channels + word * VECTOR + c) * (KERNEL_Y * KERNEL_W) + i] = own[i][c];
    }
}
#endif

#ifdef N_PARTS
KERNEL(depthwise_last_weight_join)(GLOBAL const A *sums, GLOBAL S *dw, Ints p) {
    COLUMN_JOINS(1);
    AWAIT_PREVIOUS();
    i64 number = GROUP * COLUMNS + LANE % COLUMNS;
    A sum[1];
    sum[0] = 0;
#pragma unroll 8
    for (i64 part = WORKER; part < N_PARTS; part += MEMBERS) sum[0] += number < ITEMS ? sums[part * ITEMS + number] : (A)0;
    column_sums(sum, 1, shared);
    if (WORKER == 0 && number < ITEMS) STORE(T, dw, number, sum[0]);
}
#endif

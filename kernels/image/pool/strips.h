// A thread computes a strip: STRIP adjacent elements of a line of y.

#ifdef WORD
#include "image/pool/words.h"

// The SPAN elements of a line that a strip reads are in WORDS words, from element HEAD of the first word on. Lines consist of whole
// words. CUT: the last strip may read beyond its line.

// If few elements of word `w` are needed, only these are read.
FUNCTION void read_word(A *v, GLOBAL const S *line, idx at, int w, idx width) {
    int first = w == 0 ? HEAD : 0, end = HEAD + SPAN - w * VECTOR;
    if (end > VECTOR) end = VECTOR;
    int is_inside = 1;
    if (w * VECTOR < HEAD + PW) is_inside = at >= 0;
    if (IS_SET(CUT)) is_inside = is_inside && at < width;
    if (!is_inside) at = 0;
    Read r;
    if (end - first > VECTOR / 4) SET_WORD(r, *(GLOBAL const WORD *)(line + at));
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (i < first || i >= end) continue;
        if (end - first <= VECTOR / 4) r.each[i] = line[at + i];
        v[i] = is_inside ? (A)LOAD(T, r.each, i) : BLANK;
    }
}

FUNCTION void read_strip(A *v, GLOBAL const S *line, idx left, idx width) {
#pragma unroll
    for (int w = 0; w < WORDS; w++) read_word(v + w * VECTOR, line, left - HEAD + w * VECTOR, w, width);
}
#endif

// The lines of a volume that the windows of a strip read, without the padding.
#define EACH_LINE(kd, kh) \
    UNROLL for (idx kd = 0; kd < depth; kd++) \
        if (IS_INSIDE(front + kd * DD, IN_D)) \
            UNROLL for (idx kh = 0; kh < height; kh++) \
                if (IS_INSIDE(top + kh * DH, IN_H))
#define LINE(kd, kh) ((front + (kd) * DD) * IN_H + top + (kh) * DH)

// The writing of results. The results of a group are adjacent. A thread writes its strip as a word; strips that are not aligned
// words go through local memory.
#ifdef Y_WORD
#define WRITE_VALUES(v) \
    union { \
        Y_WORD all; \
        S each[STRIP]; \
    } values; \
    EACH_OF_STRIP(j) STORE(T, values.each, j, (v)[j]); \
    if (is_item) *(GLOBAL Y_WORD *)(y + to) = values.all;
#define STAGES_VALUES 0
#define STAGE_VALUE(at, v)
#define COPY_VALUE(at)
#define STAGED_VALUES
#else
#define STAGES_VALUES 1
#define WRITE_VALUES(v)
#define STAGE_VALUE(at, v) STORE(T, staged, at, v)
#define COPY_VALUE(at) y[base + (at)] = staged[at]
#define STAGED_VALUES SHARED(S, staged, THREADS *STRIP);
#endif

#if !defined(INDEX)
#define STAGES_INDICES 0
#define WRITE_INDICES(v)
#define STAGE_INDEX(at, v)
#define COPY_INDEX(at)
#define STAGED_INDICES
#elif defined(INDEX_WORD)
#define WRITE_INDICES(v) \
    union { \
        INDEX_WORD all; \
        I each[STRIP]; \
    } positions; \
    EACH_OF_STRIP(j) positions.each[j] = (I)(v)[j]; \
    if (is_item) *(GLOBAL INDEX_WORD *)(index + to) = positions.all;
#define STAGES_INDICES 0
#define STAGE_INDEX(at, v)
#define COPY_INDEX(at)
#define STAGED_INDICES
#else
#define STAGES_INDICES 1
#define WRITE_INDICES(v)
#define STAGE_INDEX(at, v) staged_index[at] = v
#define COPY_INDEX(at) index[base + (at)] = (I)staged_index[at]
#define STAGED_INDICES SHARED(idx, staged_index, THREADS *STRIP);
#endif

#if STAGES_VALUES || STAGES_INDICES
// All threads take the same number of turns; in the last one, items may be beyond `count`.
#define EACH_STRIP(item) \
    for (idx start = (idx)(GROUP * THREADS), item; item = start + LANE, start < (idx)count; start += (idx)(GROUPS * THREADS))
#define IS_ITEM(item) ((item) < (idx)count)
#define WRITE_STAGED(v, found) \
    idx base = first_result(p, place(p, start)); \
    idx end = first_result(p, place(p, start + THREADS < (idx)count ? start + THREADS : (idx)count)); \
    EACH_OF_STRIP(j) { \
        if (!is_item || column + j >= OUT_W) continue; \
        STAGE_VALUE((int)(to - base) + j, (v)[j]); \
        STAGE_INDEX((int)(to - base) + j, (found)[j]); \
    } \
    BARRIER(); \
    for (int k = LANE; k < (int)(end - base); k += THREADS) { \
        COPY_VALUE(k); \
        COPY_INDEX(k); \
    } \
    BARRIER()
#else
#define EACH_STRIP(item) \
    for (idx item = (idx)(GROUP * THREADS) + LANE; item < (idx)count; item += (idx)(GROUPS * THREADS))
#define IS_ITEM(item) 1
#define WRITE_STAGED(v, found)
#endif

#ifdef MAX

// The elements come in ascending order. Keeps the first of the largest, or the last NaN.
#define TAKE(j, v, number) \
    if ((v) > best[j] || IS_NAN(v)) { \
        best[j] = v; \
        found[j] = number; \
    }

// Adds a line's elements to the maxima of a strip's windows.
#ifdef WORD
FUNCTION void max_of_line(Ints p, GLOBAL const S *volume, idx line, idx kd, idx kh, idx left, idx length, A *best, idx *found) {
    A v[WORDS * VECTOR];
    read_strip(v, volume + line * IN_W, left, IN_W);
    EACH_OF_STRIP(j) {
#pragma unroll
        for (int kw = 0; kw < KW; kw++) TAKE(j, v[HEAD + j * SW + kw * DW], (kd * KH + kh) * KW + kw);
    }
}
#else
FUNCTION void max_of_line(Ints p, GLOBAL const S *volume, idx line, idx kd, idx kh, idx left, idx length, A *best, idx *found) {
    UNROLL for (idx kw = 0; kw < length; kw++) {
        idx at = left + kw * DW;
        if (!IS_INSIDE(at, IN_W)) continue;
        A v = (A)LOAD(T, volume, line * IN_W + at);
        TAKE(0, v, NUMBER(line * IN_W + at, kd, kh, kw));
    }
}
#endif

KERNEL(max_pool)(GLOBAL const S *x, GLOBAL S *y, INDICES Ints p, i64 count) {
    STAGED_VALUES
    STAGED_INDICES
    EACH_STRIP(item) {
        int is_item = IS_ITEM(item);
        At at = place(p, is_item ? item : (idx)count - 1);
        idx column = at.strip * STRIP, to = first_result(p, at);
        idx front = BEGIN(at.z, D), top = BEGIN(at.y, H), left = BEGIN(column, W);
        idx depth = LENGTH(at.z, D), height = LENGTH(at.y, H), width = LENGTH(column, W);
        GLOBAL const S *volume = x + at.plane * (IN_D * IN_H * IN_W);
        A best[STRIP];
        idx found[STRIP];
        EACH_OF_STRIP(j) {
            best[j] = BLANK;
            found[j] = -1;
        }
        EACH_LINE(kd, kh) max_of_line(p, volume, LINE(kd, kh), kd, kh, left, width, best, found);
        EACH_OF_STRIP(j) found[j] = position(p, found[j], front, top, left + j * SW);
        WRITE_VALUES(best)
        WRITE_INDICES(found)
        WRITE_STAGED(best, found);
    }
}

#else

// Adds a line's elements to the sums of a strip's windows.
#ifdef WORD
FUNCTION void sum_of_line(Ints p, GLOBAL const S *line, idx left, idx length, A *sum) {
    A v[WORDS * VECTOR];
    read_strip(v, line, left, IN_W);
    EACH_OF_STRIP(j) {
#pragma unroll
        for (int kw = 0; kw < KW; kw++) sum[j] += v[HEAD + j * SW + kw * DW];
    }
}
#else
FUNCTION void sum_of_line(Ints p, GLOBAL const S *line, idx left, idx length, A *sum) {
    // Added in blocks, which keeps the errors of long sums small.
    A own = 0;
    UNROLL for (idx kw = 0; kw < length; kw++) {
        idx at = left + kw * DW;
        if (IS_INSIDE(at, IN_W)) own += (A)LOAD(T, line, at);
    }
    sum[0] += own;
}
#endif

KERNEL(avg_pool)(GLOBAL const S *x, GLOBAL S *y, Ints p, i64 count, A divisor) {
    STAGED_VALUES
    EACH_STRIP(item) {
        int is_item = IS_ITEM(item);
        At at = place(p, is_item ? item : (idx)count - 1);
        idx column = at.strip * STRIP, to = first_result(p, at);
        idx front = BEGIN(at.z, D), top = BEGIN(at.y, H), left = BEGIN(column, W);
        idx depth = LENGTH(at.z, D), height = LENGTH(at.y, H), width = LENGTH(column, W);
        GLOBAL const S *volume = x + at.plane * (IN_D * IN_H * IN_W);
        A sum[STRIP];
        EACH_OF_STRIP(j) sum[j] = 0;
        EACH_LINE(kd, kh) sum_of_line(p, volume + LINE(kd, kh) * IN_W, left, width, sum);
        DIVIDE(sum, at, column);
        WRITE_VALUES(sum)
        WRITE_STAGED(sum, sum);
    }
}

#endif

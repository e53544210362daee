// Pooling of volumes [planes, D, H, W] by windows, and its gradient: the maximum or the average of each window. window.h documents
// windows and `p`.
//
//   max_pool, avg_pool                    a thread computes a strip: STRIP adjacent elements of a line of y
//   max_pool_shared, avg_pool_shared      READERS threads share the elements of a large window
//   max_pool_columns, avg_pool_columns    a group reduces columns first, then joins them to adaptive windows
//   max_pool_backward, avg_pool_backward  a thread computes a strip of dx
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of x and y
// ACC: f32 or f64, dtype of the arithmetic
// MAX: flag, the maximum, otherwise the average
// INDEX: u8, i32 or i64, with MAX, dtype of the positions of the largest elements; not defined if they are not wanted
// LOCAL_INDEX: flag, positions are numbers within windows, otherwise within the volume
// CONSTANT: flag, sums are divided by `divisor`, otherwise by the number of their elements
// INCLUDE_PAD: flag, without CONSTANT, elements of the padding are counted
// BACKWARD: flag, the gradient
// READERS: power of 2, the threads of a window of max_pool_shared and avg_pool_shared; otherwise not defined
// COLUMNS: flag, max_pool_columns and avg_pool_columns
// STRIP: 1 .. 16, elements of a strip; 1 with READERS and COLUMNS
// VECTOR, WORD: elements and type of a word of x; not defined where x is read by elements, except that with BACKWARD, WORD is the
//   type of a strip of dx
// HEAD, SPAN, WORDS, CUT: see read_word
// Y_WORD, INDEX_WORD: u8 .. u32x4, type of a strip's values and positions; not defined unless these are aligned
// FIRST, MOST, IS_WHOLE, PIECE, G_WORD: see the gradients
// the defines of window.h

#include "image/window.h"

typedef STORAGE(T) S;
#ifdef INDEX
typedef STORAGE(INDEX) I;
#endif

#define EACH_OF_STRIP(j) _Pragma("unroll") for (int j = 0; j < STRIP; j++)

#ifndef MAX
#ifdef CONSTANT
// A product replaces the division, which takes longer than reading 16-bit elements. In 16 bits the difference does not show.
FUNCTION void divide(A *sum, A divisor) {
    A inverse = (A)1 / divisor;
    EACH_OF_STRIP(j) sum[j] = sizeof(S) == 2 ? sum[j] * inverse : sum[j] / divisor;
}
#elif !defined(ADAPTIVE)
FUNCTION idx terms(idx begin, idx length, idx l, int p) {
#ifdef INCLUDE_PAD
    idx end = l + p;
#else
    idx end = l;
    if (begin < 0) length += begin, begin = 0;
#endif
    return begin + length < end ? length : end - begin;
}
#endif

// The number of elements of a sum along a dimension, without CONSTANT.
#ifdef ADAPTIVE
#define TERMS LENGTH
#else
#define TERMS(q, X) terms(BEGIN(q, X), LENGTH(q, X), IN_##X, P##X)
#endif

// Divides the sums of the windows from `column` on.
#ifdef CONSTANT
#define DIVIDE(sums, at, column) divide(sums, divisor)
#else
#define DIVIDE(sums, at, column) \
    EACH_OF_STRIP(j) { \
        idx n = TERMS((at).z, D) * TERMS((at).y, H); \
        (sums)[j] /= (A)(n * TERMS((column) + j, W)); \
    }
#endif
#endif

#ifndef BACKWARD

// The first result of a strip.
FUNCTION idx first_result(Ints p, At at) {
    return ((at.plane * OUT_D + at.z) * OUT_H + at.y) * OUT_W + at.strip * STRIP;
}

#ifdef MAX
#define BLANK LOWEST

#ifdef INDEX
#define INDICES GLOBAL I *index,
#define WRITE_INDEX(at, position) index[at] = (I)(position)
#else
#define INDICES
#define WRITE_INDEX(at, position)
#endif

// The representation of an element's position: NUMBER during the search of a window, position() in memory. -1 is no element.
#ifdef ADAPTIVE
#define NUMBER(at, kd, kh, kw) (at)
#else
#define NUMBER(at, kd, kh, kw) (((kd)*KH + (kh)) * KW + (kw))
#endif

// The first element of a window outside of the padding.
#define FIRST_INSIDE(begin, d) ((begin) < 0 ? (-(begin) + (d)-1) / (d) : 0)

// The position of element `number` of the window that begins at (front, top, left). If no element exceeds -infinity, it is the
// position of the window's first.
FUNCTION idx position(Ints p, idx number, idx front, idx top, idx left) {
#ifdef ADAPTIVE
    return number < 0 ? (front * IN_H + top) * IN_W + left : number;
#else
    if (number < 0) number = (FIRST_INSIDE(front, DD) * KH + FIRST_INSIDE(top, DH)) * KW + FIRST_INSIDE(left, DW);
#ifdef LOCAL_INDEX
    return number;
#else
    idx kw = number % KW, kh = number / KW % KH, kd = number / KW / KH;
    return ((front + kd * DD) * IN_H + top + kh * DH) * IN_W + left + kw * DW;
#endif
#endif
}

#else
#define BLANK ((A)0)
#endif

#ifdef WORD
typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Read;
#define EACH_OF_WORD(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)
#endif

#if defined(COLUMNS) || defined(READERS)

// The result of a part of a window.
#if defined(MAX) && defined(INDEX)
typedef struct {
    A v;
    idx number;
} Part;

FUNCTION Part blank_part(void) {
    Part part;
    part.v = BLANK;
    part.number = -1;
    return part;
}

// The elements come in ascending order. Keeps the first of the largest, or the last NaN.
FUNCTION Part taken(Part part, A v, idx number) {
    int is_better = v > part.v || IS_NAN(v);
    part.v = is_better ? v : part.v;
    part.number = is_better ? number : part.number;
    return part;
}

FUNCTION Part joined(Part a, Part b) {
    int is_better = b.v > a.v || (b.v == a.v && b.number < a.number);
    if (IS_NAN(a.v) || IS_NAN(b.v)) is_better = IS_NAN(b.v) && (!IS_NAN(a.v) || b.number > a.number);
    if (a.number < 0 || b.number < 0) is_better = b.number >= 0;
    return is_better ? b : a;
}

#define NUMBER_OF(part) (part).number
#else
typedef struct {
    A v;
} Part;

FUNCTION Part blank_part(void) {
    Part part;
    part.v = BLANK;
    return part;
}

#ifdef MAX
FUNCTION Part taken(Part part, A v, idx number) {
    part.v = v > part.v || IS_NAN(v) ? v : part.v;
    return part;
}

FUNCTION Part joined(Part a, Part b) { return b.v > a.v || IS_NAN(b.v) ? b : a; }
#define NUMBER_OF(part) -1
#else
FUNCTION Part joined(Part a, Part b) {
    a.v += b.v;
    return a;
}
#endif
#endif

// Joins the parts of `members` threads, a power of 2. The first thread gets the result. All threads must call this.
LOCAL_FUNCTION Part join(Part own, int members, LOCAL Part *parts) {
#pragma unroll 1
    for (int below = members / 2; below > 0; below /= 2) {
        parts[LANE] = own;
        BARRIER();
        if ((LANE & (members - 1)) < below) own = joined(own, parts[LANE + below]);
        BARRIER();
    }
    return own;
}

#endif

#ifdef COLUMNS

// A band is the lines that adjacent windows read. There are `count` bands, and a group takes `bands` at once. First each thread
// reduces a word of columns of a band, over every `n_parts`-th line. Then `members` threads, a power of 2, compute a window from
// the parts of columns. `p` continues with: bands; the divider of the words of a group; n_parts; the logarithm of members.
#define BANDS ((idx)p.v[18])
#define BY_TAKEN p.v[19]
#define N_PARTS ((int)p.v[20])
#define SHIFT ((int)p.v[21])

// Lines that a thread reads at once.
#define BATCH_LINES 4
// The distance between the elements of a thread's word. It puts them, and adjacent elements of a line, in different banks.
#define COLUMN_STEP (THREADS + 32 / VECTOR)

// BATCH_LINES words of columns, `step` lines apart; `lines` of these lines exist.
FUNCTION void read_lines(Read *r, GLOBAL const S *x, idx line_length, idx step, idx lines) {
#pragma unroll
    for (int u = 0; u < BATCH_LINES; u++)
        if (u * step < lines) SET_WORD(r[u], *(GLOBAL const WORD *)(x + u * step * line_length));
}

// A window of columns `begin` to `end` of a band. The words of its n_parts parts begin at `word` and are `step` apart. `member` of
// `members` threads takes every `members`-th column.
LOCAL_FUNCTION Part window_of_columns(LOCAL const Part *columns, idx begin, idx end, int member, int members, int word, int step,
                                      int n_parts) {
    Part own = blank_part();
    for (int k = 0; k < n_parts; k++, word += step)
        for (idx c = begin + member; c < end; c += members)
            own = joined(own, columns[((int)c & (VECTOR - 1)) * COLUMN_STEP + word + (int)((u32)c / VECTOR)]);
    return own;
}

#define EACH_BAND(base) for (idx base = (idx)GROUP * BANDS; base < (idx)count; base += (idx)GROUPS * BANDS)
// The windows of a group's bands, with `members` threads each. All threads take the same number of turns.
#define EACH_WINDOW_OF_BANDS(window) \
    for (idx start = 0, window; window = start + (LANE >> SHIFT), start < BANDS * OUT_W; start += THREADS >> SHIFT)

#ifdef MAX

KERNEL(max_pool_columns)(GLOBAL const S *x, GLOBAL S *y, INDICES Ints p, i64 count) {
    SHARED(Part, parts, THREADS);
    SHARED(Part, columns, VECTOR * COLUMN_STEP);
    idx words = DIVISOR(0), taken_words = BANDS * words;
    int n_parts = N_PARTS, members = 1 << SHIFT;
    idx part = QUOTIENT((idx)LANE, taken_words, BY_TAKEN);
    EACH_BAND(base) {
        idx item = base * words + LANE - part * taken_words;
        if (part < n_parts && item < (idx)count * words) {
            At at = place(p, item);
            idx front = BEGIN(at.z, D), depth = LENGTH(at.z, D), top = BEGIN(at.y, H), height = LENGTH(at.y, H);
            GLOBAL const S *volume = x + (at.plane * (IN_D * IN_H * IN_W) + at.strip * VECTOR);
            // Numbers count lines.
            Part own[VECTOR];
            EACH_OF_WORD(j) own[j] = blank_part();
            for (idx z = front; z < front + depth; z++) {
                for (idx row = top + part; row < top + height; row += n_parts * BATCH_LINES) {
                    idx line = z * IN_H + row, lines = top + height - row;
                    Read r[BATCH_LINES];
                    read_lines(r, volume + line * IN_W, IN_W, n_parts, lines);
#pragma unroll
                    for (int u = 0; u < BATCH_LINES; u++) {
                        if (u * n_parts >= lines) continue;
                        EACH_OF_WORD(j) own[j] = taken(own[j], (A)LOAD(T, r[u].each, j), line + u * n_parts);
                    }
                }
            }
            EACH_OF_WORD(j) {
#ifdef INDEX
                if (own[j].number >= 0) own[j].number = own[j].number * IN_W + at.strip * VECTOR + j;
#endif
                columns[j * COLUMN_STEP + LANE] = own[j];
            }
        }
        BARRIER();
        int member = LANE & (members - 1);
        EACH_WINDOW_OF_BANDS(window) {
            idx band = QUOTIENT(window, OUT_W, BY_OUT_W), q = window - band * OUT_W;
            int is_there = band < BANDS && base + band < (idx)count;
            idx begin = BEGIN(q, W), end = END(q, W);
            Part own = window_of_columns(columns, begin, end, member, members, (int)(band * words), (int)taken_words,
                                         is_there ? n_parts : 0);
            own = join(own, members, parts);
            if (member > 0 || !is_there) continue;
            At at = place(p, (base + band) * words);
            STORE(T, y, base * OUT_W + window, own.v);
            WRITE_INDEX(base * OUT_W + window, position(p, NUMBER_OF(own), BEGIN(at.z, D), BEGIN(at.y, H), begin));
        }
        BARRIER();
    }
}

#else

KERNEL(avg_pool_columns)(GLOBAL const S *x, GLOBAL S *y, Ints p, i64 count, A divisor) {
    SHARED(Part, parts, THREADS);
    SHARED(Part, columns, VECTOR * COLUMN_STEP);
    idx words = DIVISOR(0), taken_words = BANDS * words;
    int n_parts = N_PARTS, members = 1 << SHIFT;
    idx part = QUOTIENT((idx)LANE, taken_words, BY_TAKEN);
    EACH_BAND(base) {
        idx item = base * words + LANE - part * taken_words;
        if (part < n_parts && item < (idx)count * words) {
            At at = place(p, item);
            idx front = BEGIN(at.z, D), depth = LENGTH(at.z, D), top = BEGIN(at.y, H), height = LENGTH(at.y, H);
            GLOBAL const S *volume = x + (at.plane * (IN_D * IN_H * IN_W) + at.strip * VECTOR);
            A own[VECTOR];
            EACH_OF_WORD(j) own[j] = 0;
            for (idx z = front; z < front + depth; z++) {
                for (idx row = top + part; row < top + height; row += n_parts * BATCH_LINES) {
                    idx line = z * IN_H + row, lines = top + height - row;
                    Read r[BATCH_LINES];
                    read_lines(r, volume + line * IN_W, IN_W, n_parts, lines);
                    // Added in blocks, which keeps the errors of long sums small.
                    A sum[VECTOR];
                    EACH_OF_WORD(j) sum[j] = 0;
#pragma unroll
                    for (int u = 0; u < BATCH_LINES; u++) {
                        if (u * n_parts >= lines) continue;
                        EACH_OF_WORD(j) sum[j] += (A)LOAD(T, r[u].each, j);
                    }
                    EACH_OF_WORD(j) own[j] += sum[j];
                }
            }
            EACH_OF_WORD(j) columns[j * COLUMN_STEP + LANE].v = own[j];
        }
        BARRIER();
        int member = LANE & (members - 1);
        EACH_WINDOW_OF_BANDS(window) {
            idx band = QUOTIENT(window, OUT_W, BY_OUT_W), q = window - band * OUT_W;
            int is_there = band < BANDS && base + band < (idx)count;
            idx begin = BEGIN(q, W), end = END(q, W);
            Part own = window_of_columns(columns, begin, end, member, members, (int)(band * words), (int)taken_words,
                                         is_there ? n_parts : 0);
            own = join(own, members, parts);
            if (member > 0 || !is_there) continue;
            At at = place(p, (base + band) * words);
            STORE(T, y, base * OUT_W + window, own.v / (A)(TERMS(at.z, D) * TERMS(at.y, H) * (end - begin)));
        }
        BARRIER();
    }
}

#endif

#elif defined(READERS)

// Elements that a thread takes at once.
#define BATCH 8

// All threads take the same number of turns; in the last one, items may be beyond `count`.
#define EACH_ITEM(item) \
    for (idx start = (idx)(GROUP * (THREADS / READERS)), item; item = start + LANE / READERS, start < (idx)count; \
         start += (idx)(GROUPS * (THREADS / READERS)))

// A window, the thread's element of it, and the distance to the thread's next element.
typedef struct {
    idx front, top, left, depth, height, width;
    idx kd, kh, kw, step_d, step_h, step_w;
} Reader;

FUNCTION Reader reader(Ints p, At at, int is_item) {
    Reader r;
    r.front = BEGIN(at.z, D), r.top = BEGIN(at.y, H), r.left = BEGIN(at.strip, W);
    r.depth = LENGTH(at.z, D), r.height = LENGTH(at.y, H), r.width = LENGTH(at.strip, W);
    int member = LANE % READERS;
    r.kw = member % r.width, r.kh = member / r.width % r.height, r.kd = member / r.width / r.height;
    r.step_w = READERS % r.width, r.step_h = READERS / r.width % r.height, r.step_d = READERS / r.width / r.height;
    if (!is_item) r.kd = r.depth;
    return r;
}

FUNCTION void advance(Reader *r) {
    r->kw += r->step_w, r->kh += r->step_h, r->kd += r->step_d;
    if (r->kw >= r->width) r->kw -= r->width, r->kh++;
    if (r->kh >= r->height) r->kh -= r->height, r->kd++;
}

// The thread's element, BLANK outside of the volume, and its position in the volume. No read is behind a branch.
FUNCTION A read_element(Ints p, GLOBAL const S *volume, const Reader *r, idx *at) {
    idx z = r->front + r->kd * DD, row = r->top + r->kh * DH, column = r->left + r->kw * DW;
    int is_inside = r->kd < r->depth && IS_INSIDE(z, IN_D) && IS_INSIDE(row, IN_H) && IS_INSIDE(column, IN_W);
    *at = (z * IN_H + row) * IN_W + column;
    A read = (A)LOAD(T, volume, is_inside ? *at : 0);
    return is_inside ? read : BLANK;
}

#ifdef MAX

KERNEL(max_pool_shared)(GLOBAL const S *x, GLOBAL S *y, INDICES Ints p, i64 count) {
    SHARED(Part, parts, THREADS);
    EACH_ITEM(item) {
        At at = place(p, item);
        Reader r = reader(p, at, item < (idx)count);
        GLOBAL const S *volume = x + at.plane * (IN_D * IN_H * IN_W);
        Part own = blank_part();
        while (r.kd < r.depth) {
            A v[BATCH];
            idx number[BATCH], at_x;
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                v[u] = read_element(p, volume, &r, &at_x);
                number[u] = NUMBER(at_x, r.kd, r.kh, r.kw);
                advance(&r);
            }
#pragma unroll
            for (int u = 0; u < BATCH; u++) own = taken(own, v[u], number[u]);
        }
        own = join(own, READERS, parts);
        if (LANE % READERS > 0 || item >= (idx)count) continue;
        idx first = first_result(p, at);
        STORE(T, y, first, own.v);
        WRITE_INDEX(first, position(p, NUMBER_OF(own), r.front, r.top, r.left));
    }
}

#else

KERNEL(avg_pool_shared)(GLOBAL const S *x, GLOBAL S *y, Ints p, i64 count, A divisor) {
    SHARED(Part, parts, THREADS);
    EACH_ITEM(item) {
        At at = place(p, item);
        Reader r = reader(p, at, item < (idx)count);
        GLOBAL const S *volume = x + at.plane * (IN_D * IN_H * IN_W);
        Part own = blank_part();
        while (r.kd < r.depth) {
            A v[BATCH];
            idx at_x;
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                v[u] = read_element(p, volume, &r, &at_x);
                advance(&r);
            }
            // Added in blocks, which keeps the errors of long sums small.
#pragma unroll
            for (int u = 1; u < BATCH; u++) v[0] += v[u];
            own.v += v[0];
        }
        own = join(own, READERS, parts);
        if (LANE % READERS > 0 || item >= (idx)count) continue;
        DIVIDE(&own.v, at, at.strip);
        STORE(T, y, first_result(p, at), own.v);
    }
}

#endif

#else

#ifdef WORD
// The SPAN elements of a line that a strip reads are in WORDS words, from element HEAD of the first word on. Lines consist of whole
// words. CUT: the last strip may read beyond its line.

// If few elements of word `w` are needed, only these are read.
FUNCTION void read_word(A *v, GLOBAL const S *line, idx at, int w, idx width) {
    int first = w == 0 ? HEAD : 0, end = HEAD + SPAN - w * VECTOR;
    if (end > VECTOR) end = VECTOR;
    int is_inside = 1;
    if (w * VECTOR < HEAD + PW) is_inside = at >= 0;
#ifdef CUT
    is_inside = is_inside && at < width;
#endif
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
#define STAGE_VALUE(at, v)
#define COPY_VALUE(at)
#define STAGED_VALUES
#else
#define STAGED
#define WRITE_VALUES(v)
#define STAGE_VALUE(at, v) STORE(T, staged, at, v)
#define COPY_VALUE(at) y[base + (at)] = staged[at]
#define STAGED_VALUES SHARED(S, staged, THREADS *STRIP);
#endif

#if !defined(INDEX)
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
#define STAGE_INDEX(at, v)
#define COPY_INDEX(at)
#define STAGED_INDICES
#else
#ifndef STAGED
#define STAGED
#endif
#define WRITE_INDICES(v)
#define STAGE_INDEX(at, v) staged_index[at] = v
#define COPY_INDEX(at) index[base + (at)] = (I)staged_index[at]
#define STAGED_INDICES SHARED(idx, staged_index, THREADS *STRIP);
#endif

#ifdef STAGED
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
#endif

#else

// Gradients are gathered: a thread computes a strip of dx from all windows that contain elements of it.
//
// FIRST: .., number of the first window along a line that contains elements of a strip, counted from the first window that begins
//   in the strip; if not defined, it is computed
// MOST: 1.., maximal number of such windows along a line; not defined if it is not known
// IS_WHOLE: flag, with FIRST, all windows that begin in a strip exist
// PIECE: 2 .. 16, windows that begin in a strip, if they are aligned words of dy; otherwise not defined
// G_WORD, INDEX_WORD: with PIECE, the types of these words of dy and of positions

#define EACH_STRIP(item) \
    for (idx item = (idx)(GROUP * THREADS) + LANE; item < (idx)count; item += (idx)(GROUPS * THREADS))

// Windows along a line that may contain elements of a strip: window number m is from + m.
typedef struct {
    idx from, last;
} Near;

#ifdef FIRST
// The first window that begins in a strip.
#define FIRST_IN(at) ((at).strip * (STRIP / SW))
FUNCTION Near near(Ints p, At at) {
    Near n;
    n.from = FIRST_IN(at) + FIRST;
    n.last = 0;
    return n;
}
#define IS_THERE(n, m, q) ((FIRST + (m) >= 0 || (q) >= 0) && ((FIRST + (m) < STRIP / SW && IS_WHOLE) || (q) < OUT_W))
// The window's first element, relative to the strip's.
#define BEGIN_IN_STRIP(at, m, q) ((FIRST + (m)) * SW - PW)
#define MAY_HAVE(begin, j) ((begin) <= (j) && (j) <= (begin) + (KW - 1) * DW)
#else
FUNCTION Near near(Ints p, At at) {
    Near n;
    n.from = FIRST_OF(at.strip * STRIP, W);
    n.last = LAST_OF(at.strip * STRIP + STRIP - 1, W);
    return n;
}
#if !defined(MOST)
#define IS_THERE(n, m, q) 1
#elif defined(ADAPTIVE)
#define IS_THERE(n, m, q) ((m) == 0 || (q) <= (n).last)
#else
#define IS_THERE(n, m, q) ((q) <= (n).last)
#endif
#define BEGIN_IN_STRIP(at, m, q) (BEGIN(q, W) - (at).strip * STRIP)
#define MAY_HAVE(begin, j) 1
#endif

#ifdef MOST
#define EACH_NEAR(n, m) _Pragma("unroll") for (int m = 0; m < MOST; m++)
#else
#define EACH_NEAR(n, m) for (idx m = 0; (n).from + m <= (n).last; m++)
#endif

// Element q of a line of dy or positions, which begins at `line`. The elements of windows that begin in the strip are read as a
// word.
#ifdef PIECE
#define READ_PIECE(type, word, name, array, at) \
    union { \
        word all; \
        type each[PIECE]; \
    } name; \
    name.all = *(GLOBAL const word *)((array) + (at));
#define AT_WINDOW(array, line, name, m, q) \
    (FIRST + (m) >= 0 && FIRST + (m) < PIECE ? name.each[(FIRST + (m)) & (PIECE - 1)] : (array)[(line) + (q)])
#else
#define READ_PIECE(type, word, name, array, at)
#define AT_WINDOW(array, line, name, m, q) ((array)[(line) + (q)])
#endif

FUNCTION void write_strip(Ints p, GLOBAL S *dx, At at, const A *v) {
    union {
        WORD all;
        S each[STRIP];
    } result;
    EACH_OF_STRIP(j) STORE(T, result.each, j, v[j]);
    *(GLOBAL WORD *)(dx + (((at.plane * IN_D + at.z) * IN_H + at.y) * IN_W + at.strip * STRIP)) = result.all;
}

#ifdef MAX

KERNEL(max_pool_backward)(GLOBAL const S *g, GLOBAL const I *index, GLOBAL S *dx, Ints p, i64 count) {
    EACH_STRIP(item) {
        At at = place(p, item);
        Near windows = near(p, at);
        A sum[STRIP];
        EACH_OF_STRIP(j) sum[j] = 0;
        EACH_WINDOW(qd, at.z, D) {
            idx far_d = at.z - BEGIN(qd, D);
            if (DD > 1 && far_d % DD != 0) continue;
            EACH_WINDOW(qh, at.y, H) {
                idx far_h = at.y - BEGIN(qh, H);
                if (DH > 1 && far_h % DH != 0) continue;
                idx line = ((at.plane * OUT_D + qd) * OUT_H + qh) * OUT_W;
                READ_PIECE(S, G_WORD, gs, g, line + FIRST_IN(at))
                READ_PIECE(I, INDEX_WORD, indices, index, line + FIRST_IN(at))
                EACH_NEAR(windows, m) {
                    idx q = windows.from + m;
                    int is_there = IS_THERE(windows, m, q);
                    // A window out of range is replaced by another one: no read waits for a branch, or for another read.
                    idx read = is_there ? q : 0;
                    S bits = AT_WINDOW(g, line, gs, m, read);
                    A v = (A)LOAD(T, &bits, 0);
                    idx j_found = (idx)AT_WINDOW(index, line, indices, m, read);
                    const idx begin = BEGIN_IN_STRIP(at, m, q);
#ifdef LOCAL_INDEX
                    j_found -= (far_d / DD * KH + far_h / DH) * KW;
                    j_found = is_there && IS_INSIDE(j_found, KW) ? begin + j_found * DW : -1;
#else
                    j_found = is_there ? j_found - ((at.z * IN_H + at.y) * IN_W + at.strip * STRIP) : -1;
#endif
                    EACH_OF_STRIP(j) if (MAY_HAVE(begin, j)) sum[j] += j == j_found ? v : 0;
                }
            }
        }
        write_strip(p, dx, at, sum);
    }
}

#else

KERNEL(avg_pool_backward)(GLOBAL const S *g, GLOBAL S *dx, Ints p, i64 count, A divisor) {
    EACH_STRIP(item) {
        At at = place(p, item);
        Near windows = near(p, at);
        A sum[STRIP];
        EACH_OF_STRIP(j) sum[j] = 0;
        EACH_WINDOW(qd, at.z, D) {
            EACH_WINDOW(qh, at.y, H) {
                idx line = ((at.plane * OUT_D + qd) * OUT_H + qh) * OUT_W;
                READ_PIECE(S, G_WORD, gs, g, line + FIRST_IN(at))
                EACH_NEAR(windows, m) {
                    idx q = windows.from + m;
                    if (!IS_THERE(windows, m, q)) continue;
                    S bits = AT_WINDOW(g, line, gs, m, q);
                    A v = (A)LOAD(T, &bits, 0);
#ifndef CONSTANT
                    v /= (A)(TERMS(qd, D) * TERMS(qh, H) * TERMS(q, W));
#endif
                    idx begin = BEGIN_IN_STRIP(at, m, q), end = begin + LENGTH(q, W);
                    EACH_OF_STRIP(j) if (begin <= j && j < end) sum[j] += v;
                }
            }
        }
#ifdef CONSTANT
        divide(sum, divisor);
#endif
        write_strip(p, dx, at, sum);
    }
}

#endif
#endif

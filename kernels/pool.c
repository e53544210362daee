// Pooling of volumes [planes, D, H, W] by windows, and its gradient. Windows are KD x KH x KW elements, D. apart, which begin
// S. apart, the first P. before the volume; or ADAPTIVE, between fractions of its extents. FLAT: D is 1.
//
// `p`: D, H, W; the numbers of windows along these; then three divisors: strips of a line, lines, and slices of what a
// launch writes, each with what a quotient is made with. A thread writes a strip: STRIP neighbours of a line; or READERS threads,
// a power of 2, share the elements of one window.
//
// T: dtype of x and y; ACC: of the arithmetic. MAX: the largest elements, and where they are, in INDEX: numbers within
// windows if it is LOCAL_INDEX, else positions in the volume. Otherwise averages: sums are divided by `divisor` if it is
// CONSTANT, else by how many elements they have, with INCLUDE_PAD those of the padding too.

typedef STORAGE(T) S;
#ifdef MAX
typedef STORAGE(INDEX) I;
#define BLANK LOWEST
#else
#define BLANK ((A)0)
#endif

#ifdef FLAT
#define IN_D 1
#define OUT_D 1
#else
#define IN_D ((idx)p.v[0])
#define OUT_D ((idx)p.v[3])
#endif
#define IN_H ((idx)p.v[1])
#define IN_W ((idx)p.v[2])
#define OUT_H ((idx)p.v[4])
#define OUT_W ((idx)p.v[5])

#define DIVISOR(k) p.v[6 + 3 * (k)]
#ifdef WIDE
typedef u64 Item;
#define QUOTIENT(n, k) ((n) / (u64)DIVISOR(k))
#else
// n / d = n m >> s below 2^31, for s = 31 + l, m = 2^s / d + 1, 2^l >= d.
typedef u32 Item;
#define QUOTIENT(n, k) ((u32)((u64)(n) * (u32)p.v[7 + 3 * (k)] >> (int)p.v[8 + 3 * (k)]))
#endif
#ifdef READERS
// All threads come as often: some of the last ones with an item beyond `count`.
#define EACH_ITEM(item) \
    for (Item start = (Item)(GROUP * (THREADS / READERS)), item; item = start + LANE / READERS, start < (Item)count; \
         start += (Item)(GROUPS * (THREADS / READERS)))
#else
#define EACH_ITEM(item) \
    for (Item item = (Item)(GROUP * THREADS + LANE); item < (Item)count; item += (Item)(GROUPS * THREADS))
#endif

#define IS_INSIDE(at, extent) ((at) >= 0 && (at) < (extent))
#ifdef SMALL
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif
#define EACH_OF_STRIP(j) _Pragma("unroll") for (int j = 0; j < STRIP; j++)

// What a thread writes.
typedef struct {
    idx plane, z, y, strip;
} At;

FUNCTION At place(Ints p, Item item) {
    Item line = QUOTIENT(item, 0), slice = QUOTIENT(line, 1);
    At at;
    at.strip = (idx)(item - line * (Item)DIVISOR(0));
    at.y = (idx)(line - slice * (Item)DIVISOR(1));
#ifdef FLAT
    at.z = 0;
    at.plane = (idx)slice;
#else
    Item plane = QUOTIENT(slice, 2);
    at.z = (idx)(slice - plane * (Item)DIVISOR(2));
    at.plane = (idx)plane;
#endif
    return at;
}

#ifdef ADAPTIVE
#ifdef FAR
typedef u64 Product;
#else
typedef u32 Product;
#endif
// Window q of n over l elements.
#define BEGIN(q, n, l, S, P) ((idx)((Product)(q) * (Product)(l) / (Product)(n)))
#define END(q, n, l) ((idx)(((Product)((q) + 1) * (Product)(l) + (Product)(n)-1) / (Product)(n)))
#define LENGTH(q, n, l, K) (END(q, n, l) - BEGIN(q, n, l, 0, 0))
// The first and the last window that have an element.
#define FIRST_OF(at, n, l, K, S, P, D) ((idx)((Product)(at) * (Product)(n) / (Product)(l)))
#define LAST_OF(at, n, l, S, P) ((idx)((((Product)(at) + 1) * (Product)(n)-1) / (Product)(l)))
#else
#define BEGIN(q, n, l, S, P) ((q) * (S) - (P))
#define LENGTH(q, n, l, K) (K)
FUNCTION idx first_of(idx at, int k, int s, int p, int d) {
    idx after = at + p - d * (k - 1);
    return after > 0 ? (after + s - 1) / s : 0;
}
FUNCTION idx last_of(idx at, idx n, int s, int p) {
    idx last = (at + p) / s;
    return last < n ? last : n - 1;
}
#define FIRST_OF(at, n, l, K, S, P, D) first_of(at, K, S, P, D)
#define LAST_OF(at, n, l, S, P) last_of(at, n, S, P)
#endif

#if !defined(MAX) && !defined(CONSTANT)
// How many elements a sum has along a dimension.
FUNCTION idx terms(idx begin, idx length, idx l, int p) {
#ifdef INCLUDE_PAD
    idx end = l + p;
#else
    idx end = l;
    if (begin < 0) length += begin, begin = 0;
#endif
    return begin + length < end ? length : end - begin;
}
#define TERMS(q, n, l, K, S, P) terms(BEGIN(q, n, l, S, P), LENGTH(q, n, l, K), l, P)
#endif

#ifndef BACKWARD
// Elements that one of several readers takes at once.
#define BATCH 8

#ifdef WORD
// The elements of a line that a strip reads lie in WORDS words, HEAD behind the first of these: SPAN elements. Lines are
// whole words. CUT: the last strip may read beyond its line.
typedef union {
    WORD all;
    S each[VECTOR];
} Read;

// Of word `w` only those that are needed, if these are few.
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
    if (end - first > VECTOR / 4) r.all = *(GLOBAL const WORD *)(line + at);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (i < first || i >= end) continue;
        if (end - first <= VECTOR / 4) r.each[i] = line[at + i];
        v[i] = is_inside ? (A)LOAD(T, r.each, i) : BLANK;
    }
}
#endif

// How an element at this place of the volume and of its window is told.
#ifdef ADAPTIVE
#define NUMBER(at, kd, kh, kw) (at)
#else
#define NUMBER(at, kd, kh, kw) (((kd)*KH + (kh)) * KW + (kw))
#endif

#ifdef MAX
#ifdef READERS
// The last NaN, else the first of the largest; the number is -1 where nothing was found.
FUNCTION int is_better(A v, idx number, A than, idx than_number) {
    if (number < 0 || than_number < 0) return number >= 0;
    if (IS_NAN(v) || IS_NAN(than)) return IS_NAN(v) && (!IS_NAN(than) || number > than_number);
    return v > than || (v == than && number < than_number);
}
#endif

#define TAKE(j, v, number) \
    if ((v) > best[j] || IS_NAN(v)) best[j] = v, found[j] = number

// The first element of a window that is not padding.
#define FIRST_INSIDE(begin, d) ((begin) < 0 ? (-(begin) + (d)-1) / (d) : 0)

KERNEL(max_pool)(GLOBAL const S *x, GLOBAL S *y, GLOBAL I *index, Ints p, i64 count) {
#else
#define TAKE(j, v, number) best[j] += v

KERNEL(avg_pool)(GLOBAL const S *x, GLOBAL S *y, Ints p, i64 count, A divisor) {
#endif
#ifdef READERS
    SHARED(A, values, THREADS);
#ifdef MAX
    SHARED(idx, numbers, THREADS);
#endif
#endif
    EACH_ITEM(item) {
        At at = place(p, item);
        idx column = at.strip * STRIP;
        idx front = BEGIN(at.z, OUT_D, IN_D, SD, PD), depth = LENGTH(at.z, OUT_D, IN_D, KD);
        idx top = BEGIN(at.y, OUT_H, IN_H, SH, PH), height = LENGTH(at.y, OUT_H, IN_H, KH);
        idx left = BEGIN(column, OUT_W, IN_W, SW, PW);
        GLOBAL const S *volume = x + at.plane * (IN_D * IN_H * IN_W);
        A best[STRIP];
        EACH_OF_STRIP(j) best[j] = BLANK;
#ifdef MAX
        idx found[STRIP];
        EACH_OF_STRIP(j) found[j] = -1;
#endif
#ifdef READERS
        idx width = LENGTH(column, OUT_W, IN_W, KW);
        int member = LANE % READERS;
        // This thread's element, and how far its next one is.
        idx kw = member % width, kh = member / width % height, kd = member / width / height;
        idx step_w = READERS % width, step_h = READERS / width % height, step_d = READERS / width / height;
        if (item >= (Item)count) kd = depth;
        while (kd < depth) {
            A v[BATCH];
            idx number[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                idx z = front + kd * DD, row = top + kh * DH, at_w = left + kw * DW;
                int is_inside = kd < depth && IS_INSIDE(z, IN_D) && IS_INSIDE(row, IN_H) && IS_INSIDE(at_w, IN_W);
                idx at_x = (z * IN_H + row) * IN_W + at_w;
                v[u] = is_inside ? (A)LOAD(T, volume, at_x) : BLANK;
                number[u] = NUMBER(at_x, kd, kh, kw);
                kw += step_w, kh += step_h, kd += step_d;
                if (kw >= width) kw -= width, kh++;
                if (kh >= height) kh -= height, kd++;
            }
#ifdef MAX
#pragma unroll
            for (int u = 0; u < BATCH; u++) TAKE(0, v[u], number[u]);
#else
            // Of long sums no element is added to all before it.
#pragma unroll
            for (int u = 1; u < BATCH; u++) v[0] += v[u];
            best[0] += v[0];
#endif
        }
#pragma unroll 1
        for (int below = READERS / 2; below > 0; below /= 2) {
            values[LANE] = best[0];
#ifdef MAX
            numbers[LANE] = found[0];
#endif
            BARRIER();
            if (member < below) {
                A v = values[LANE + below];
#ifdef MAX
                idx number = numbers[LANE + below];
                if (is_better(v, number, best[0], found[0])) best[0] = v, found[0] = number;
#else
                best[0] += v;
#endif
            }
            BARRIER();
        }
        if (member > 0 || item >= (Item)count) continue;
#else
        UNROLL for (idx kd = 0; kd < depth; kd++) {
            idx z = front + kd * DD;
            if (!IS_INSIDE(z, IN_D)) continue;
            UNROLL for (idx kh = 0; kh < height; kh++) {
                idx row = top + kh * DH;
                if (!IS_INSIDE(row, IN_H)) continue;
                GLOBAL const S *line = volume + (z * IN_H + row) * IN_W;
#ifdef WORD
                A v[WORDS * VECTOR];
#pragma unroll
                for (int w = 0; w < WORDS; w++)
                    read_word(v + w * VECTOR, line, left - HEAD + w * VECTOR, w, IN_W);
                EACH_OF_STRIP(j) {
#pragma unroll
                    for (int kw = 0; kw < KW; kw++) TAKE(j, v[HEAD + j * SW + kw * DW], (kd * KH + kh) * KW + kw);
                }
#else
                idx width = LENGTH(column, OUT_W, IN_W, KW);
#ifndef MAX
                // Of long sums no line is added to all before it.
                A before = best[0];
                best[0] = 0;
#endif
                UNROLL for (idx kw = 0; kw < width; kw++) {
                    idx at_w = left + kw * DW;
                    if (!IS_INSIDE(at_w, IN_W)) continue;
                    A v = (A)LOAD(T, line, at_w);
                    TAKE(0, v, NUMBER((z * IN_H + row) * IN_W + at_w, kd, kh, kw));
                }
#ifndef MAX
                best[0] += before;
#endif
#endif
            }
        }
#endif
        idx first = ((at.plane * OUT_D + at.z) * OUT_H + at.y) * OUT_W + column;
#ifdef MAX
        union {
            I each[STRIP];
#ifdef INDEX_WORD
            INDEX_WORD all[INDEX_WORDS];
#endif
        } positions;
        EACH_OF_STRIP(j) {
#ifdef ADAPTIVE
            if (found[j] < 0) found[j] = (front * IN_H + top) * IN_W + left;
            positions.each[j] = (I)found[j];
#else
            idx begin = left + j * SW;
            // No element is larger than -infinity.
            if (found[j] < 0)
                found[j] = (FIRST_INSIDE(front, DD) * KH + FIRST_INSIDE(top, DH)) * KW + FIRST_INSIDE(begin, DW);
#ifdef LOCAL_INDEX
            positions.each[j] = (I)found[j];
#else
            idx kw = found[j] % KW, kh = found[j] / KW % KH, kd = found[j] / KW / KH;
            positions.each[j] = (I)(((front + kd * DD) * IN_H + top + kh * DH) * IN_W + begin + kw * DW);
#endif
#endif
        }
#else
        EACH_OF_STRIP(j) {
#ifdef CONSTANT
            best[j] /= divisor;
#else
            idx n = TERMS(at.z, OUT_D, IN_D, KD, SD, PD) * TERMS(at.y, OUT_H, IN_H, KH, SH, PH);
            best[j] /= (A)(n * TERMS(column + j, OUT_W, IN_W, KW, SW, PW));
#endif
        }
#endif
#ifdef Y_WORD
        union {
            Y_WORD all;
            S each[STRIP];
        } result;
        EACH_OF_STRIP(j) STORE(T, result.each, j, best[j]);
        *(GLOBAL Y_WORD *)(y + first) = result.all;
#else
        EACH_OF_STRIP(j) if (column + j < OUT_W) STORE(T, y, first + j, best[j]);
#endif
#ifdef INDEX_WORD
#pragma unroll
        for (int w = 0; w < INDEX_WORDS; w++) ((GLOBAL INDEX_WORD *)(index + first))[w] = positions.all[w];
#elif defined(MAX)
        EACH_OF_STRIP(j) if (column + j < OUT_W) index[first + j] = positions.each[j];
#endif
    }
}

#else

// Of the windows along a line that have elements of a strip, at most MOST, the first is number FIRST, if that is known, of
// those that begin in the strip; else it is looked for. PIECE windows begin in a strip, which lie side by side in aligned
// words.
#ifdef PIECE
#define PIECE_OF(type, word, name) \
    union { \
        word all; \
        type each[PIECE]; \
    } name
#endif

#ifdef MAX
KERNEL(max_pool_backward)(GLOBAL const S *g, GLOBAL const I *index, GLOBAL S *dx, Ints p, i64 count) {
#else
KERNEL(avg_pool_backward)(GLOBAL const S *g, GLOBAL S *dx, Ints p, i64 count, A divisor) {
#endif
    EACH_ITEM(item) {
        At at = place(p, item);
        idx column = at.strip * STRIP;
        A sum[STRIP];
        EACH_OF_STRIP(j) sum[j] = 0;
        idx last_d = LAST_OF(at.z, OUT_D, IN_D, SD, PD), last_h = LAST_OF(at.y, OUT_H, IN_H, SH, PH);
#ifdef FIRST
        idx piece = at.strip * (STRIP / SW), from = piece + FIRST;
#else
        idx from = FIRST_OF(column, OUT_W, IN_W, KW, SW, PW, DW), last = LAST_OF(column + STRIP - 1, OUT_W, IN_W, SW, PW);
#endif
        for (idx qd = FIRST_OF(at.z, OUT_D, IN_D, KD, SD, PD, DD); qd <= last_d; qd++) {
            idx far_d = at.z - BEGIN(qd, OUT_D, IN_D, SD, PD);
            if (DD > 1 && far_d % DD != 0) continue;
            for (idx qh = FIRST_OF(at.y, OUT_H, IN_H, KH, SH, PH, DH); qh <= last_h; qh++) {
                idx far_h = at.y - BEGIN(qh, OUT_H, IN_H, SH, PH);
                if (DH > 1 && far_h % DH != 0) continue;
                idx line = ((at.plane * OUT_D + qd) * OUT_H + qh) * OUT_W;
#ifdef PIECE
                PIECE_OF(S, G_WORD, gs);
                gs.all = *(GLOBAL const G_WORD *)(g + (line + piece));
#ifdef MAX
                PIECE_OF(I, INDEX_WORD, indices);
                indices.all = *(GLOBAL const INDEX_WORD *)(index + (line + piece));
#endif
#endif
#ifdef FIRST
#pragma unroll
                for (int m = 0; m < MOST; m++) {
                    idx q = from + m;
                    int is_there = 1;
                    if (FIRST + m < 0) is_there = q >= 0;
                    if (FIRST + m >= STRIP / SW || !IS_WHOLE) is_there = is_there && q < OUT_W;
                    // Of the window's first element, from the strip's.
                    const int begin = (FIRST + m) * SW - PW;
#define MAY_HAVE(j) (begin <= (j) && (j) <= begin + (KW - 1) * DW)
#else
                for (idx q = from; q <= last; q++) {
                    int is_there = 1;
#if !defined(MAX) || defined(LOCAL_INDEX)
                    idx begin = BEGIN(q, OUT_W, IN_W, SW, PW) - column;
#endif
#define MAY_HAVE(j) 1
#endif
                    A v = 0;
#ifdef PIECE
                    const int is_of_piece = FIRST + m >= 0 && FIRST + m < PIECE;
#define AT_WINDOW(type, array, pieces) (is_of_piece ? (pieces)[FIRST + m & (PIECE - 1)] : (array)[line + q])
#else
#define AT_WINDOW(type, array, pieces) ((array)[line + q])
#endif
                    if (is_there) {
                        S bits = AT_WINDOW(S, g, gs.each);
                        v = (A)LOAD(T, &bits, 0);
#ifdef MAX
                        idx j_found = (idx)AT_WINDOW(I, index, indices.each);
#ifdef LOCAL_INDEX
                        j_found -= (far_d / DD * KH + far_h / DH) * KW;
                        j_found = IS_INSIDE(j_found, KW) ? begin + j_found * DW : -1;
#else
                        j_found -= (at.z * IN_H + at.y) * IN_W + column;
#endif
                        EACH_OF_STRIP(j) if (MAY_HAVE(j) && j == j_found) sum[j] += v;
#else
#ifndef CONSTANT
                        idx n = TERMS(qd, OUT_D, IN_D, KD, SD, PD) * TERMS(qh, OUT_H, IN_H, KH, SH, PH);
                        v /= (A)(n * TERMS(q, OUT_W, IN_W, KW, SW, PW));
#endif
#ifdef FIRST
                        EACH_OF_STRIP(j) if (MAY_HAVE(j)) sum[j] += v;
#else
                        idx end = begin + LENGTH(q, OUT_W, IN_W, KW);
                        EACH_OF_STRIP(j) if (begin <= j && j < end) sum[j] += v;
#endif
#endif
                    }
                }
            }
        }
        idx first = ((at.plane * IN_D + at.z) * IN_H + at.y) * IN_W + column;
#ifdef CONSTANT
        EACH_OF_STRIP(j) sum[j] /= divisor;
#endif
#ifdef WORD
        union {
            WORD all;
            S each[STRIP];
        } result;
        EACH_OF_STRIP(j) STORE(T, result.each, j, sum[j]);
        *(GLOBAL WORD *)(dx + first) = result.all;
#else
        STORE(T, dx, first, sum[0]);
#endif
    }
}
#endif

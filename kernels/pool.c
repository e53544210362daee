// Pooling of volumes [planes, D, H, W] by windows, and its gradient. Windows are KD x KH x KW elements, D. apart, which begin
// S. apart, the first P. before the volume; or ADAPTIVE, between fractions of its extents: ONE is all of it. FLAT: D is 1.
//
// `p`: D, H, W; the numbers of windows along these; what QUOTIENT takes of these six; then three divisors: strips of a line,
// lines, and slices of what a launch writes, each with what QUOTIENT takes. A thread writes a strip: STRIP neighbours of a
// line; or READERS threads, a power of 2, share the elements of one window; or windows are made of COLUMNS, for which `p` has
// more.
//
// T: dtype of x and y; ACC: of the arithmetic. MAX: the largest elements, and with INDEX where they are, in that dtype: numbers
// within windows if it is LOCAL_INDEX, else positions in the volume. Otherwise averages: sums are divided by `divisor` if it is
// CONSTANT, else by how many elements they have, with INCLUDE_PAD those of the padding too.

typedef STORAGE(T) S;
#ifdef INDEX
typedef STORAGE(INDEX) I;
#endif
#ifdef MAX
#define BLANK LOWEST
#else
#define BLANK ((A)0)
#endif

// What QUOTIENT takes of 1.
#define BY_1 ((i64)1 << 31)
#ifdef FLAT
#define IN_D 1
#define OUT_D 1
#define BY_IN_D BY_1
#define BY_OUT_D BY_1
#else
#define IN_D ((idx)p.v[0])
#define OUT_D ((idx)p.v[3])
#define BY_IN_D p.v[6]
#define BY_OUT_D p.v[9]
#endif
#define IN_H ((idx)p.v[1])
#define IN_W ((idx)p.v[2])
#define OUT_H ((idx)p.v[4])
#define OUT_W ((idx)p.v[5])
#define BY_IN_H p.v[7]
#define BY_IN_W p.v[8]
#define BY_OUT_H p.v[10]
#define BY_OUT_W p.v[11]

#define DIVISOR(k) ((idx)p.v[12 + 2 * (k)])
#define BY_DIVISOR(k) p.v[13 + 2 * (k)]
// A group's results, which are neighbours, go through local memory where a thread's are not one word.
#if !defined(BACKWARD) && (!defined(Y_WORD) || defined(INDEX) && !defined(INDEX_WORD))
#define STAGED
#endif
#ifndef READERS
#define READERS 1
#endif
#if READERS > 1 || defined(STAGED)
// All threads come as often: some of the last ones with an item beyond `count`.
#define EACH_ITEM(item) \
    for (idx start = (idx)(GROUP * (THREADS / READERS)), item; item = start + LANE / READERS, start < (idx)count; \
         start += (idx)(GROUPS * (THREADS / READERS)))
#else
#define EACH_ITEM(item) \
    for (idx item = (idx)(GROUP * THREADS) + LANE; item < (idx)count; item += (idx)(GROUPS * THREADS))
#endif

#define IS_INSIDE(at, extent) ((at) >= 0 && (at) < (extent))
#ifdef SMALL
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif
#define EACH_OF_STRIP(j) _Pragma("unroll") for (int j = 0; j < STRIP; j++)

#ifdef CONSTANT
// Divisions take longer than 16 bits are read, which do not show how a product differs.
FUNCTION void divide(A *sum, A divisor) {
    A inverse = (A)1 / divisor;
    EACH_OF_STRIP(j) sum[j] = sizeof(S) == 2 ? sum[j] * inverse : sum[j] / divisor;
}
#endif

// What a thread writes.
typedef struct {
    idx plane, z, y, strip;
} At;

FUNCTION At place(Ints p, idx item) {
    idx line = QUOTIENT(item, DIVISOR(0), BY_DIVISOR(0)), slice = QUOTIENT(line, DIVISOR(1), BY_DIVISOR(1));
    At at;
    at.strip = item - line * DIVISOR(0);
    at.y = line - slice * DIVISOR(1);
#ifdef FLAT
    at.z = 0;
    at.plane = slice;
#else
    at.plane = QUOTIENT(slice, DIVISOR(2), BY_DIVISOR(2));
    at.z = slice - at.plane * DIVISOR(2);
#endif
    return at;
}

// Where windows are along the dimension X: D, H or W.
#if defined(ONE)
#define BEGIN(q, X) 0
#define END(q, X) IN_##X
#define LENGTH END
#define FIRST_OF(at, X) 0
#define LAST_OF(at, X) 0
#elif defined(ADAPTIVE)
#ifdef FAR
#define SHARE(n, d, by) ((idx)((u64)(n) / (u64)(d)))
typedef u64 Product;
#else
// QUOTIENT, also of WIDE positions.
#define SHARE(n, d, by) ((idx)(mul_hi_u32((u32)(n) << 1, by) >> (int)((by) >> 32)))
typedef u32 Product;
#endif
#define BEGIN(q, X) SHARE((Product)(q) * (Product)IN_##X, OUT_##X, BY_OUT_##X)
#define END(q, X) SHARE(((Product)(q) + 1) * (Product)IN_##X + (Product)OUT_##X - 1, OUT_##X, BY_OUT_##X)
#define LENGTH(q, X) (END(q, X) - BEGIN(q, X))
// The first and the last window that have an element.
#define FIRST_OF(at, X) SHARE((Product)(at) * (Product)OUT_##X, IN_##X, BY_IN_##X)
#define LAST_OF(at, X) SHARE(((Product)(at) + 1) * (Product)OUT_##X - 1, IN_##X, BY_IN_##X)
#else
#define BEGIN(q, X) ((q) * (S##X) - (P##X))
#define LENGTH(q, X) (K##X)
FUNCTION idx first_of(idx at, int k, int s, int p, int d) {
    idx after = at + p - d * (k - 1);
    return after > 0 ? (after + s - 1) / s : 0;
}
FUNCTION idx last_of(idx at, idx n, int s, int p) {
    idx last = (at + p) / s;
    return last < n ? last : n - 1;
}
#define FIRST_OF(at, X) first_of(at, K##X, S##X, P##X, D##X)
#define LAST_OF(at, X) last_of(at, OUT_##X, S##X, P##X)
#endif

// The windows that have an element along X, where it is known at most how many.
#ifdef ADAPTIVE
#define EACH_WINDOW(q, at, X) _Pragma("unroll 1") for (idx q = FIRST_OF(at, X), last = LAST_OF(at, X); q <= last; q++)
#else
#define EACH_WINDOW(q, at, X) \
    for (idx q = FIRST_OF(at, X), last = LAST_OF(at, X), end = q + (K##X - 1) * D##X / S##X; q <= last && q <= end; q++)
#endif

// How many elements a sum has along a dimension.
#if defined(ADAPTIVE)
#define TERMS LENGTH
#elif !defined(MAX) && !defined(CONSTANT)
FUNCTION idx terms(idx begin, idx length, idx l, int p) {
#ifdef INCLUDE_PAD
    idx end = l + p;
#else
    idx end = l;
    if (begin < 0) length += begin, begin = 0;
#endif
    return begin + length < end ? length : end - begin;
}
#define TERMS(q, X) terms(BEGIN(q, X), LENGTH(q, X), IN_##X, P##X)
#endif

#ifndef BACKWARD
// Elements that one of several readers takes at once.
#define BATCH 8

#ifdef WORD
typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Read;
#define EACH_OF_WORD(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)
#endif

#ifdef COLUMNS
// Lines that a thread reads at once.
#define BATCH_LINES 4
// From an element of a thread's word to the next, so that neither they nor neighbours of a line are in the same bank.
#define COLUMN_STEP (THREADS + 32 / VECTOR)
#elif defined(WORD)
// The elements of a line that a strip reads lie in WORDS words, HEAD behind the first of these: SPAN elements. Lines are
// whole words. CUT: the last strip may read beyond its line.

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
    if (end - first > VECTOR / 4) SET_WORD(r, *(GLOBAL const WORD *)(line + at));
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (i < first || i >= end) continue;
        if (end - first <= VECTOR / 4) r.each[i] = line[at + i];
        v[i] = is_inside ? (A)LOAD(T, r.each, i) : BLANK;
    }
}
#endif

// The first result of a strip.
FUNCTION idx first_result(Ints p, At at) {
    return ((at.plane * OUT_D + at.z) * OUT_H + at.y) * OUT_W + at.strip * STRIP;
}

// How an element at this place of the volume and of its window is told.
#ifdef ADAPTIVE
#define NUMBER(at, kd, kh, kw) (at)
#else
#define NUMBER(at, kd, kh, kw) (((kd)*KH + (kh)) * KW + (kw))
#endif

// What a part of a window has; the number is -1 where nothing was found.
typedef struct {
    A v;
#ifdef INDEX
    idx number;
#endif
} Part;

FUNCTION Part blank_part(void) {
    Part part;
    part.v = BLANK;
#ifdef INDEX
    part.number = -1;
#endif
    return part;
}

// Of a maximum the last NaN, else the first of the largest.
FUNCTION Part joined(Part a, Part b) {
#ifdef INDEX
    int is_better = b.v > a.v || (b.v == a.v && b.number < a.number);
    if (IS_NAN(a.v) || IS_NAN(b.v)) is_better = IS_NAN(b.v) && (!IS_NAN(a.v) || b.number > a.number);
    if (a.number < 0 || b.number < 0) is_better = b.number >= 0;
    return is_better ? b : a;
#elif defined(MAX)
    return b.v > a.v || IS_NAN(b.v) ? b : a;
#else
    a.v += b.v;
    return a;
#endif
}

// Joins the parts of `members` threads, a power of 2; the first of them gets the result. All threads come.
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

#ifdef INDEX
#define NOTE(note) note
#define INDICES GLOBAL I *index,
#else
#define NOTE(note)
#define INDICES
#endif
#ifdef MAX
#define TAKE(j, v, number)                \
    if ((v) > best[j] || IS_NAN(v)) {     \
        best[j] = v;                      \
        NOTE(found[j] = number;)          \
    }

// The first element of a window that is not padding.
#define FIRST_INSIDE(begin, d) ((begin) < 0 ? (-(begin) + (d)-1) / (d) : 0)

KERNEL(max_pool)(GLOBAL const S *x, GLOBAL S *y, INDICES Ints p, i64 count) {
#else
#define TAKE(j, v, number) best[j] += v

KERNEL(avg_pool)(GLOBAL const S *x, GLOBAL S *y, Ints p, i64 count, A divisor) {
#endif
#if READERS > 1 || defined(COLUMNS)
    SHARED(Part, parts, THREADS);
#endif
#ifdef COLUMNS
    // A band is the lines that windows side by side read: `count` are there, and a group takes `bands` at once. First each
    // thread goes through a word of columns of a band: every `n_parts`-th line. Then `members` threads each make a window
    // of the parts of columns.
    SHARED(Part, columns, VECTOR * COLUMN_STEP);
    idx bands = (idx)p.v[18], words = DIVISOR(0), taken = bands * words;
    int n_parts = (int)p.v[20], shift = (int)p.v[21], members = 1 << shift;
    idx part = QUOTIENT((idx)LANE, taken, p.v[19]);
    for (idx base = (idx)GROUP * bands; base < (idx)count; base += (idx)GROUPS * bands) {
        idx item = base * words + LANE - part * taken;
        if (part < n_parts && item < (idx)count * words) {
            At at = place(p, item);
            idx front = BEGIN(at.z, D), depth = LENGTH(at.z, D), top = BEGIN(at.y, H), height = LENGTH(at.y, H);
            GLOBAL const S *volume = x + (at.plane * (IN_D * IN_H * IN_W) + at.strip * VECTOR);
            // Numbers are of lines.
            Part own[VECTOR];
            EACH_OF_WORD(j) own[j] = blank_part();
            for (idx z = front; z < front + depth; z++) {
                for (idx y_first = top + part; y_first < top + height; y_first += n_parts * BATCH_LINES) {
                    idx line = z * IN_H + y_first, lines = top + height - y_first;
                    Read r[BATCH_LINES];
#pragma unroll
                    for (int u = 0; u < BATCH_LINES; u++)
                        if (u * n_parts < lines) SET_WORD(r[u], *(GLOBAL const WORD *)(volume + (line + u * n_parts) * IN_W));
#ifndef MAX
                    // Of long sums no line is added to all before it.
                    A sum[VECTOR];
                    EACH_OF_WORD(j) sum[j] = 0;
#endif
#pragma unroll
                    for (int u = 0; u < BATCH_LINES; u++) {
                        if (u * n_parts >= lines) continue;
                        EACH_OF_WORD(j) {
                            A v = (A)LOAD(T, r[u].each, j);
#ifdef MAX
                            if (v > own[j].v || IS_NAN(v)) {
                                own[j].v = v;
                                NOTE(own[j].number = line + u * n_parts;)
                            }
#else
                            sum[j] += v;
#endif
                        }
                    }
#ifndef MAX
                    EACH_OF_WORD(j) own[j].v += sum[j];
#endif
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
        for (idx first = 0; first < bands * OUT_W; first += THREADS >> shift) {
            idx window = first + (LANE >> shift), band = QUOTIENT(window, OUT_W, BY_OUT_W), q = window - band * OUT_W;
            int is_there = band < bands && base + band < (idx)count;
            idx begin = BEGIN(q, W), end = END(q, W);
            Part own = blank_part();
            for (int k = 0; is_there && k < n_parts; k++) {
                int word = (int)(k * taken + band * words);
                for (idx c = begin + member; c < end; c += members)
                    own = joined(own, columns[((int)c & (VECTOR - 1)) * COLUMN_STEP + word + (int)((u32)c / VECTOR)]);
            }
            own = join(own, members, parts);
            if (member > 0 || !is_there) continue;
            At at = place(p, (base + band) * words);
            idx to = base * OUT_W + window;
#ifdef INDEX
            // No element is larger than -infinity.
            if (own.number < 0) own.number = (BEGIN(at.z, D) * IN_H + BEGIN(at.y, H)) * IN_W + begin;
            index[to] = (I)own.number;
#elif !defined(MAX)
            own.v /= (A)(TERMS(at.z, D) * TERMS(at.y, H) * (end - begin));
#endif
            STORE(T, y, to, own.v);
        }
        BARRIER();
    }
#else
#ifdef STAGED
    SHARED(S, staged, THREADS *STRIP);
#ifdef INDEX
    SHARED(idx, staged_index, THREADS *STRIP);
#endif
#endif
    EACH_ITEM(item) {
#ifdef STAGED
        int is_item = item < (idx)count;
        At at = place(p, is_item ? item : (idx)count - 1);
#else
        const int is_item = 1;
        At at = place(p, item);
#endif
        idx column = at.strip * STRIP;
        idx front = BEGIN(at.z, D), depth = LENGTH(at.z, D);
        idx top = BEGIN(at.y, H), height = LENGTH(at.y, H);
        idx left = BEGIN(column, W);
        GLOBAL const S *volume = x + at.plane * (IN_D * IN_H * IN_W);
        A best[STRIP];
        EACH_OF_STRIP(j) best[j] = BLANK;
#ifdef INDEX
        idx found[STRIP];
        EACH_OF_STRIP(j) found[j] = -1;
#endif
#if READERS > 1
        idx width = LENGTH(column, W);
        int member = LANE % READERS;
        // This thread's element, and how far its next one is.
        idx kw = member % width, kh = member / width % height, kd = member / width / height;
        idx step_w = READERS % width, step_h = READERS / width % height, step_d = READERS / width / height;
        if (item >= (idx)count) kd = depth;
        while (kd < depth) {
            A v[BATCH];
            idx number[BATCH];
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                idx z = front + kd * DD, row = top + kh * DH, at_w = left + kw * DW;
                int is_inside = kd < depth && IS_INSIDE(z, IN_D) && IS_INSIDE(row, IN_H) && IS_INSIDE(at_w, IN_W);
                idx at_x = (z * IN_H + row) * IN_W + at_w;
                // No read is behind a branch.
                A read = (A)LOAD(T, volume, is_inside ? at_x : 0);
                v[u] = is_inside ? read : BLANK;
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
        Part own;
        own.v = best[0];
#ifdef INDEX
        own.number = found[0];
#endif
        own = join(own, READERS, parts);
        best[0] = own.v;
#ifdef INDEX
        found[0] = own.number;
#endif
        if (member > 0 || item >= (idx)count) continue;
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
                idx width = LENGTH(column, W);
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
        idx first = first_result(p, at);
#ifdef INDEX
        EACH_OF_STRIP(j) {
#ifdef ADAPTIVE
            if (found[j] < 0) found[j] = (front * IN_H + top) * IN_W + left;
#else
            idx begin = left + j * SW;
            // No element is larger than -infinity.
            if (found[j] < 0)
                found[j] = (FIRST_INSIDE(front, DD) * KH + FIRST_INSIDE(top, DH)) * KW + FIRST_INSIDE(begin, DW);
#ifndef LOCAL_INDEX
            idx kw = found[j] % KW, kh = found[j] / KW % KH, kd = found[j] / KW / KH;
            found[j] = ((front + kd * DD) * IN_H + top + kh * DH) * IN_W + begin + kw * DW;
#endif
#endif
        }
#elif !defined(MAX)
#ifdef CONSTANT
        divide(best, divisor);
#else
        EACH_OF_STRIP(j) {
            idx n = TERMS(at.z, D) * TERMS(at.y, H);
            best[j] /= (A)(n * TERMS(column + j, W));
        }
#endif
#endif
#ifdef Y_WORD
        union {
            Y_WORD all;
            S each[STRIP];
        } result;
        EACH_OF_STRIP(j) STORE(T, result.each, j, best[j]);
        if (is_item) *(GLOBAL Y_WORD *)(y + first) = result.all;
#endif
#ifdef INDEX_WORD
        union {
            INDEX_WORD all;
            I each[STRIP];
        } positions;
        EACH_OF_STRIP(j) positions.each[j] = (I)found[j];
        if (is_item) *(GLOBAL INDEX_WORD *)(index + first) = positions.all;
#endif
#ifdef STAGED
        idx base = first_result(p, place(p, start));
        idx end = first_result(p, place(p, start + THREADS < (idx)count ? start + THREADS : (idx)count));
        EACH_OF_STRIP(j) {
            if (!is_item || column + j >= OUT_W) continue;
            int to = (int)(first - base) + j;
#ifndef Y_WORD
            STORE(T, staged, to, best[j]);
#endif
#if defined(INDEX) && !defined(INDEX_WORD)
            staged_index[to] = found[j];
#endif
        }
        BARRIER();
        for (int k = LANE; k < (int)(end - base); k += THREADS) {
#ifndef Y_WORD
            y[base + k] = staged[k];
#endif
#if defined(INDEX) && !defined(INDEX_WORD)
            index[base + k] = (I)staged_index[k];
#endif
        }
        BARRIER();
#endif
    }
#endif
}

#else

// Of the windows along a line that have elements of a strip, at most MOST if that is known, the first is number FIRST, if that
// is known, of those that begin in the strip; else it is looked for. PIECE windows begin in a strip, which lie side by side
// in aligned words.
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
#ifdef FIRST
        idx piece = at.strip * (STRIP / SW), from = piece + FIRST;
#else
        idx from = FIRST_OF(column, W), last_w = LAST_OF(column + STRIP - 1, W);
#endif
        EACH_WINDOW(qd, at.z, D) {
            idx far_d = at.z - BEGIN(qd, D);
            if (DD > 1 && far_d % DD != 0) continue;
            EACH_WINDOW(qh, at.y, H) {
                idx far_h = at.y - BEGIN(qh, H);
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
#ifdef MOST
#pragma unroll
                for (int m = 0; m < MOST; m++) {
                    idx q = from + m;
#else
                for (idx q = from; q <= last_w; q++) {
#endif
                    int is_there = 1;
#ifdef FIRST
                    if (FIRST + m < 0) is_there = q >= 0;
                    if (FIRST + m >= STRIP / SW || !IS_WHOLE) is_there = is_there && q < OUT_W;
                    // Of the window's first element, from the strip's.
                    const int begin = (FIRST + m) * SW - PW;
#define MAY_HAVE(j) (begin <= (j) && (j) <= begin + (KW - 1) * DW)
#else
#ifdef MOST
#ifdef ADAPTIVE
                    if (m > 0) is_there = q <= last_w;
#else
                    is_there = q <= last_w;
#endif
#endif
#if !defined(MAX) || defined(LOCAL_INDEX)
                    idx begin = BEGIN(q, W) - column;
#endif
#define MAY_HAVE(j) 1
#endif
#ifdef PIECE
                    const int is_of_piece = FIRST + m >= 0 && FIRST + m < PIECE;
#define AT_WINDOW(array, pieces, q) (is_of_piece ? (pieces)[FIRST + m & (PIECE - 1)] : (array)[line + (q)])
#else
#define AT_WINDOW(array, pieces, q) ((array)[line + (q)])
#endif
#ifdef MAX
                    // Of a window that is not there, another one is read: no read waits for a branch, or another read.
                    S bits = AT_WINDOW(g, gs.each, is_there ? q : 0);
                    A v = (A)LOAD(T, &bits, 0);
                    idx j_found = (idx)AT_WINDOW(index, indices.each, is_there ? q : 0);
#ifdef LOCAL_INDEX
                    j_found -= (far_d / DD * KH + far_h / DH) * KW;
                    j_found = is_there && IS_INSIDE(j_found, KW) ? begin + j_found * DW : -1;
#else
                    j_found = is_there ? j_found - ((at.z * IN_H + at.y) * IN_W + column) : -1;
#endif
                    EACH_OF_STRIP(j) if (MAY_HAVE(j)) sum[j] += j == j_found ? v : 0;
#else
                    if (is_there) {
                        S bits = AT_WINDOW(g, gs.each, q);
                        A v = (A)LOAD(T, &bits, 0);
#ifndef CONSTANT
                        idx n = TERMS(qd, D) * TERMS(qh, H);
                        v /= (A)(n * TERMS(q, W));
#endif
#ifdef FIRST
                        EACH_OF_STRIP(j) if (MAY_HAVE(j)) sum[j] += v;
#else
                        idx end = begin + LENGTH(q, W);
                        EACH_OF_STRIP(j) if (begin <= j && j < end) sum[j] += v;
#endif
                    }
#endif
                }
            }
        }
        idx first = ((at.plane * IN_D + at.z) * IN_H + at.y) * IN_W + column;
#ifdef CONSTANT
        divide(sum, divisor);
#endif
        union {
            WORD all;
            S each[STRIP];
        } result;
        EACH_OF_STRIP(j) STORE(T, result.each, j, sum[j]);
        *(GLOBAL WORD *)(dx + first) = result.all;
    }
}
#endif

// Running sums and products along the last dimension of x. y is contiguous, except for COLUMNS (at the end of the file).
//
// The elements of a row are counted from the start of the scan:
// element t is at `first + t * stride` in x, and at `n - 1 - t` or t in y. A launch scans `part` elements of each row per line of
// groups (GROUP_Y). Several parts take three steps: totals of the parts, a scan of the totals, and a scan of each part that starts
// with the total before it (CARRIES).
//
// A running product of floats is a fraction and an exponent of 2. A part then neither overflows nor vanishes where the product from
// the start of the row is in range, and factors may be multiplied in any order. A running product out of range is inf or 0, and is
// in range again if later factors allow it.
//
// With POSITIONS, x is a contiguous mask that is scanned as one row, and y `[POSITIONS, count]` gets the positions of its true
// elements in each dimension. The number of true elements before one is its column in y.
//
// THREADS: 1 .. 1024, threads of a group
// KEPT: 1.., number of the other dimensions
// KEPT_EXTENT, KEPT_X, KEPT_Y: their extents, and their strides in x and, with COLUMNS, in y
// ITEMS: 1.., adjacent elements of a thread
// X, Y, ACC: dtypes of x, of y and of the arithmetic
// PARTIAL_X, PARTIAL_Y: flags, x, y hold totals, in place of X, Y
// JOIN_SUM, JOIN_PROD: flag, the function of the scan
// SCALED: i64, type of the exponents of a product of floats
// TOTALS: flag, only totals of parts are computed
// CARRIES: flag, parts start with `carries`
// POSITIONS, MASK_EXTENT: 1.., dimensions of a mask, and their extents
// N_TRUE: with POSITIONS, `count`
// COLUMNS: flag, scan_columns, for rows that are adjacent in memory
// VECTOR, X_WORD, Y_WORD: with COLUMNS, elements of a word, and its types
// INTEGER, NEEDS_F64: flags, the arithmetic is i64, f64
// WIDE: flag, positions have 64 bits

#ifdef SCALED
typedef Scaled P;
#define TAKE(v) scaled(v, 0)
#define NOTHING scaled(1, 0)
#define join product
#define value unscaled
#else
typedef A P;
#define TAKE(v) ((P)(v))
#ifdef JOIN_SUM
#define NOTHING ((P)0)
FUNCTION P join(P a, P b) { return ADD(a, b); }
#else
#define NOTHING ((P)1)
FUNCTION P join(P a, P b) { return MULTIPLY(a, b); }
#endif
#define value(v) (v)
#endif

#ifdef PARTIAL_X
typedef P From;
#define ELEMENT(x, at) ((x)[at])
#else
typedef STORAGE(X) From;
#define ELEMENT(x, at) TAKE(LOAD(X, x, at))
#endif

#ifdef PARTIAL_Y
typedef P To;
#define PUT(y, at, v) ((y)[at] = (v))
#else
typedef STORAGE(Y) To;
#ifdef POSITIONS
#define PUT(y, at, v) put_position(y, at, v, p)
#else
#define PUT(y, at, v) STORE(Y, y, at, value(v))
#endif
#endif

#ifndef COLUMNS
// The position in x of the first element of a row.
FUNCTION idx place(Ints p, idx row) {
    idx at = 0;
#pragma unroll
    for (int d = KEPT - 1; d >= 0; d--) {
        idx c = d == 0 ? row : row % KEPT_EXTENT(d);
        if (d > 0) row /= KEPT_EXTENT(d);
        at += c * KEPT_X(d);
    }
    return at;
}

#ifdef POSITIONS
// Element t of a mask belongs to this column, or to none (-1).
FUNCTION void put_position(GLOBAL To *y, idx t, P column, Ints p) {
    if (column < 0 || column >= N_TRUE) return;
#pragma unroll
    for (int d = POSITIONS - 1; d >= 0; d--) {
        y[d * N_TRUE + (idx)column] = d == 0 ? t : t % MASK_EXTENT(d);
        t /= MASK_EXTENT(d);
    }
}
#endif

#ifdef TOTALS
// The total of part GROUP_Y of row GROUP, one per group; y: [rows, parts].
KERNEL(scan_totals)(GLOBAL const From *x, GLOBAL To *y, Ints p, i64 n, i64 part, i64 first, i64 stride) {
    SHARED(P, shared, THREADS);
    idx from = place(p, (idx)GROUP) + (idx)first;
    idx start = (idx)(GROUP_Y * part), end = (idx)n - start > (idx)part ? start + (idx)part : (idx)n;
    P acc[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) acc[i] = NOTHING;
    idx t = start + LANE;
    for (; t + (ITEMS - 1) * THREADS < end; t += ITEMS * THREADS)
#pragma unroll
        for (int i = 0; i < ITEMS; i++) acc[i] = join(acc[i], ELEMENT(x, from + (t + i * THREADS) * (idx)stride));
    for (; t < end; t += THREADS) acc[0] = join(acc[0], ELEMENT(x, from + t * (idx)stride));
#pragma unroll
    for (int i = 1; i < ITEMS; i++) acc[0] = join(acc[0], acc[i]);
    shared[LANE] = acc[0];
    BARRIER();
    for (int below = THREADS / 2; below > 0; below /= 2) {
        if (LANE < below) shared[LANE] = join(shared[LANE], shared[LANE + below]);
        BARRIER();
    }
    if (LANE == 0) PUT(y, (idx)GROUP * (idx)GROUPS_Y + (idx)GROUP_Y, shared[0]);
}
#else
// A team of threads, a power of 2, scans part GROUP_Y of a row in tiles of team * ITEMS elements. A group has THREADS / team teams,
// each with a row of its own. Tiles go through local memory: adjacent threads read and write adjacent elements, while each thread
// scans ITEMS consecutive elements.
KERNEL(scan)(GLOBAL const From *x, GLOBAL To *y, Ints p, i64 rows, i64 n, i64 part, i64 first, i64 stride,
             i64 is_reverse, i64 is_exclusive, i64 team
#ifdef CARRIES
             ,
             GLOBAL const P *carries
#endif
) {
    // One element of padding per thread, so that threads access different banks.
    SHARED(P, tile, THREADS * (ITEMS + 1));
    SHARED(P, totals, THREADS);
    int members = (int)team, member = LANE % members, lead = LANE - member;
    i64 row = GROUP * (THREADS / members) + LANE / members;
    int is_row = row < rows;
    idx from = is_row ? place(p, (idx)row) + (idx)first : 0, to = is_row ? (idx)row * (idx)n : 0;
    idx start = (idx)(GROUP_Y * part), end = (idx)n - start > (idx)part ? start + (idx)part : (idx)n;
    P carry = NOTHING;
#ifdef CARRIES
    if (is_row) carry = carries[(idx)row * (idx)GROUPS_Y + (idx)GROUP_Y];
#endif
    for (idx at = start; at < end; at += members * ITEMS) {
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int k = i * members + member;
            P v = NOTHING;
            if (is_row && at + k < end) v = ELEMENT(x, from + (at + k) * (idx)stride);
            tile[lead * (ITEMS + 1) + k + k / ITEMS] = v;
        }
        BARRIER();
        P own[ITEMS], running = NOTHING;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            own[i] = tile[LANE * (ITEMS + 1) + i];
            running = i == 0 ? own[0] : join(running, own[i]);
        }
        totals[LANE] = running;
        BARRIER();
        for (int below = 1; below < members; below *= 2) {
            if (member >= below) running = join(totals[LANE - below], running);
            BARRIER();
            totals[LANE] = running;
            BARRIER();
        }
        P before = member > 0 ? join(carry, totals[LANE - 1]) : carry;
        carry = join(carry, totals[lead + members - 1]);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            P after = join(before, own[i]);
#ifdef POSITIONS
            tile[LANE * (ITEMS + 1) + i] = own[i] != 0 ? before : -1;
#else
            tile[LANE * (ITEMS + 1) + i] = is_exclusive ? before : after;
#endif
            before = after;
        }
        BARRIER();
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            int k = i * members + member;
            idx t = at + k;
            if (is_row && t < end)
                PUT(y, to + (is_reverse ? (idx)n - 1 - t : t), tile[lead * (ITEMS + 1) + k + k / ITEMS]);
        }
        BARRIER();
    }
}
#endif
#else
// Columns are rows that are adjacent in memory. A line has one element of each column. Line t is at
// `first + t * stride` in x, and at `y_first + t * y_stride` in y. Totals and carries are [parts, columns].
//
// Adjacent threads take adjacent columns, VECTOR each, as words X_WORD and Y_WORD. A group covers `width` of these vectors, a power
// of 2; the threads beyond `width` take other lines, ITEMS consecutive ones each. `vectors` and the last extent count vectors. With
// TOTALS, y gets the totals of parts.

#define EACH_LINE(i) _Pragma("unroll") for (int i = 0; i < ITEMS; i++)
#define EACH_COLUMN(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)
#define TOTAL(j) ((j) * THREADS + LANE)

#ifdef PARTIAL_X
#define X_WORD P
#endif
#ifdef PARTIAL_Y
#define Y_WORD P
#endif
typedef union {
    X_WORD all;
    From each[VECTOR];
} Read;
typedef union {
    Y_WORD all;
    To each[VECTOR];
} Written;

// Adds to `from` and `to` the start of a vector.
FUNCTION void place(Ints p, idx vector, idx *from, idx *to) {
#pragma unroll
    for (int d = KEPT - 1; d >= 0; d--) {
        idx c = d == 0 ? vector : vector % KEPT_EXTENT(d);
        if (d > 0) vector /= KEPT_EXTENT(d);
        if (d == KEPT - 1) c *= VECTOR;
        *from += c * KEPT_X(d);
        *to += c * KEPT_Y(d);
    }
}

KERNEL(scan_columns)(GLOBAL const From *x, GLOBAL To *y, Ints p, i64 vectors, i64 n, i64 part, i64 first, i64 stride,
                     i64 y_first, i64 y_stride, i64 is_exclusive, i64 width
#ifdef CARRIES
                     ,
                     GLOBAL const P *carries
#endif
) {
    SHARED(P, totals, THREADS * VECTOR);
    int columns = (int)width, members = THREADS / columns, member = LANE / columns;
    i64 vector = GROUP * columns + LANE % columns;
    int is_vector = vector < vectors;
    // Threads out of range read the last vector or the last line, and write nothing.
    if (!is_vector) vector = vectors - 1;
    idx from = (idx)first, to = (idx)y_first;
    place(p, (idx)vector, &from, &to);
    idx start = (idx)(GROUP_Y * part), end = (idx)n - start > (idx)part ? start + (idx)part : (idx)n;
    idx column = ((idx)GROUP_Y * (idx)vectors + (idx)vector) * VECTOR;
    P carry[VECTOR], own[VECTOR];
#ifdef CARRIES
    EACH_COLUMN(j) carry[j] = carries[column + j];
#else
    EACH_COLUMN(j) carry[j] = NOTHING;
#endif
    for (idx at = start; at < end; at += members * ITEMS) {
        idx t = at + member * ITEMS;
        Read lines[ITEMS];
        EACH_LINE(i) {
            idx line = t + i < end ? t + i : end - 1;
            lines[i].all = *(GLOBAL const X_WORD *)(x + (from + line * (idx)stride));
        }
        EACH_COLUMN(j) own[j] = NOTHING;
        EACH_LINE(i) {
            if (t + i < end) {
                EACH_COLUMN(j) own[j] = join(own[j], ELEMENT(lines[i].each, j));
            }
        }
#ifdef TOTALS
        EACH_COLUMN(j) carry[j] = join(carry[j], own[j]);
#else
        EACH_COLUMN(j) totals[TOTAL(j)] = own[j];
        BARRIER();
        for (int by = 1; by < members; by *= 2) {
            if (member >= by) {
                EACH_COLUMN(j) own[j] = join(totals[TOTAL(j) - by * columns], own[j]);
            }
            BARRIER();
            EACH_COLUMN(j) totals[TOTAL(j)] = own[j];
            BARRIER();
        }
        EACH_COLUMN(j) {
            own[j] = member > 0 ? join(carry[j], totals[TOTAL(j) - columns]) : carry[j];
            carry[j] = join(carry[j], totals[TOTAL(j) + (members - 1 - member) * columns]);
        }
        EACH_LINE(i) {
            Written line;
            EACH_COLUMN(j) {
                P after = join(own[j], ELEMENT(lines[i].each, j));
                PUT(line.each, j, is_exclusive ? own[j] : after);
                own[j] = after;
            }
            if (is_vector && t + i < end) *(GLOBAL Y_WORD *)(y + (to + (t + i) * (idx)y_stride)) = line.all;
        }
        BARRIER();
#endif
    }
#ifdef TOTALS
    EACH_COLUMN(j) totals[TOTAL(j)] = carry[j];
    BARRIER();
    for (int below = members / 2; below > 0; below /= 2) {
        if (member < below) {
            EACH_COLUMN(j) totals[TOTAL(j)] = join(totals[TOTAL(j)], totals[TOTAL(j) + below * columns]);
        }
        BARRIER();
    }
    if (member == 0 && is_vector) {
        EACH_COLUMN(j) PUT(y, column + j, totals[TOTAL(j)]);
    }
#endif
}
#endif

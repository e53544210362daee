// Softmax and its logarithm along the middle one of three extents, forward and backward.
//
// T and ACC: dtypes of the tensors and of the arithmetic. LOGARITHM: which of the two. With PER, a group takes a row
// (inner extent 1); without, a thread takes a column.

#ifdef LOGARITHM
#define SUMMARY(sum) log_(sum)
#define RESULT(x, max, summary) ((x) - (max) - (summary))
#define SLOPE_TERM(g, y) (g)
#define SLOPE(g, y, sum) ((g) - exp_(y) * (sum))
#else
#define SUMMARY(sum) ((A)1 / (sum))
#define RESULT(x, max, summary) (exp_((x) - (max)) * (summary))
#define SLOPE_TERM(g, y) ((g) * (y))
#define SLOPE(g, y, sum) ((y) * ((g) - (sum)))
#endif

FUNCTION A larger(A a, A b) { return b > a || b != b ? b : a; }

#ifdef PER
// `e^(x - max)`, 0 while all is -infinity.
FUNCTION A power(A x, A max) { return x == LOWEST && max == LOWEST ? (A)0 : exp_(x - max); }

KERNEL(softmax_rows)(GLOBAL const S *x, GLOBAL S *y, i64 rows, i64 extent) {
    SHARED(A, shared, THREADS);
    for (i64 row = GROUP; row < rows; row += GROUPS) {
        KEEP(xs);
        FILL(xs, x);
        A max = LOWEST, sum = 0;
        Read r;
#if PER > 0
        EACH_WORD(w) {
            FETCH(r, xs, x, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) max = larger(max, LOAD(T, r.each, j));
        }
        max = GROUP_MAX(max, shared);
        EACH_WORD(w) {
            FETCH(r, xs, x, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) sum += exp_(LOAD(T, r.each, j) - max);
        }
        sum = GROUP_SUM(sum, shared);
#else
        // One turn: the sum so far shrinks when a larger element comes.
        EACH_WORD(w) {
            FETCH(r, xs, x, w);
            A most = max;
            EACH_ELEMENT(j) if (INSIDE(w, j)) most = larger(most, LOAD(T, r.each, j));
            sum *= power(max, most);
            max = most;
            EACH_ELEMENT(j) if (INSIDE(w, j)) sum += power(LOAD(T, r.each, j), max);
        }
        A mine = max;
        max = GROUP_MAX(max, shared);
        sum = GROUP_SUM(sum * power(mine, max), shared);
#endif
        A summary = SUMMARY(sum);
        EACH_WORD(w) {
            FETCH(r, xs, x, w);
            EACH_ELEMENT(j) {
                A v = LOAD(T, r.each, j);
                STORE(T, r.each, j, RESULT(v, max, summary));
            }
            PUT_WORD(y, r, w);
        }
    }
}

KERNEL(softmax_rows_backward)(GLOBAL const S *g, GLOBAL const S *y, GLOBAL S *dx, i64 rows, i64 extent) {
    SHARED(A, shared, THREADS);
    for (i64 row = GROUP; row < rows; row += GROUPS) {
        KEEP(gs);
        KEEP(ys);
        FILL(gs, g);
        FILL(ys, y);
        A sum = 0;
        Read a, b;
        EACH_WORD(w) {
            FETCH(a, gs, g, w);
            FETCH(b, ys, y, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) sum += SLOPE_TERM(LOAD(T, a.each, j), LOAD(T, b.each, j));
        }
        sum = GROUP_SUM(sum, shared);
        EACH_WORD(w) {
            FETCH(a, gs, g, w);
            FETCH(b, ys, y, w);
            EACH_ELEMENT(j) {
                A dy = LOAD(T, a.each, j), p = LOAD(T, b.each, j);
                STORE(T, a.each, j, SLOPE(dy, p, sum));
            }
            PUT_WORD(dx, a, w);
        }
    }
}

#else
typedef STORAGE(T) S;

// Sums are made of parts of this length.
#define PART 256
// Neighbouring columns are neighbours in memory, or short rows.
#define COLUMN(c) ((idx)((c) / inner * extent * inner + (c) % inner))
#define EACH_PART(start, end) for (idx start = 0, end; end = start + PART < extent ? start + PART : (idx)extent, start < extent; start = end)

KERNEL(softmax_columns)(GLOBAL const S *x, GLOBAL S *y, i64 columns, i64 extent, i64 inner) {
    for (i64 c = GROUP * THREADS + LANE; c < columns; c += GROUPS * THREADS) {
        idx at = COLUMN(c), step = (idx)inner;
        A max = LOWEST, sum = 0;
        for (idx i = 0; i < extent; i++) max = larger(max, LOAD(T, x, at + i * step));
        EACH_PART(start, end) {
            A part = 0;
            for (idx i = start; i < end; i++) part += exp_(LOAD(T, x, at + i * step) - max);
            sum += part;
        }
        A summary = SUMMARY(sum);
        for (idx i = 0; i < extent; i++) {
            A v = LOAD(T, x, at + i * step);
            STORE(T, y, at + i * step, RESULT(v, max, summary));
        }
    }
}

KERNEL(softmax_columns_backward)(GLOBAL const S *g, GLOBAL const S *y, GLOBAL S *dx, i64 columns, i64 extent, i64 inner) {
    for (i64 c = GROUP * THREADS + LANE; c < columns; c += GROUPS * THREADS) {
        idx at = COLUMN(c), step = (idx)inner;
        A sum = 0;
        EACH_PART(start, end) {
            A part = 0;
            for (idx i = start; i < end; i++) part += SLOPE_TERM(LOAD(T, g, at + i * step), LOAD(T, y, at + i * step));
            sum += part;
        }
        for (idx i = 0; i < extent; i++) {
            A dy = LOAD(T, g, at + i * step), p = LOAD(T, y, at + i * step);
            STORE(T, dx, at + i * step, SLOPE(dy, p, sum));
        }
    }
}
#endif

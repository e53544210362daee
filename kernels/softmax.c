// Softmax and its logarithm along the middle one of three extents, forward and backward.
//
// T and ACC: dtypes of the tensors and of the arithmetic. LOGARITHM: which of the two. With PER, a team takes a row
// (inner extent 1), forward or BACKWARD; without, a thread takes a column.

#ifdef LOGARITHM
#define SUMMARY(sum) log_(sum)
#define RESULT(x, max, summary) ((x) - (max) - (summary))
#define SLOPE_TERM(g, y) (g)
#define SLOPE(g, y, sum) ((g) - POWER(y) * (sum))
#else
#define SUMMARY(sum) ((A)1 / (sum))
#define RESULT(x, max, summary) (POWER((x) - (max)) * (summary))
#define SLOPE_TERM(g, y) ((g) * (y))
#define SLOPE(g, y, sum) ((y) * ((g) - (sum)))
#endif

// A maximum is never NaN, but a sum of powers is, if an element was.

#if defined(PER) && !defined(BACKWARD)
KERNEL(softmax_rows)(GLOBAL const S *x, GLOBAL S *y, i64 rows, i64 extent) {
    JOINS(1);
#ifdef OTHERS
    SHARED_GIVEN(WORD, held, HELD_WORDS);
#endif
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        A v[PER][VECTOR], max = LOWEST, sum = 0;
        keep(v, x, at, LOWEST);
        A edge = edge_of(x, at, LOWEST);
#ifdef OTHERS
        // The sum so far shrinks when a larger element comes. Of -infinity alone it is 0.
        EACH_BATCH(at, b) {
            Read r[BATCH];
            A n[BATCH][VECTOR], most = max, part = 0;
            read_batch(r, x, at, b);
            hold_batch(held, r, b);
            EACH_OF_BATCH(u) {
                numbers_of(n[u], r[u], BATCH_WORD(b, u) < at.words, LOWEST);
                EACH_ELEMENT(j) most = fmax_(most, n[u][j]);
            }
            A base = most == LOWEST ? (A)0 : most;
            EACH_OF_BATCH(u) EACH_ELEMENT(j) part += POWER(n[u][j] - base);
            sum = sum * POWER(max - base) + part;
            max = most;
        }
#endif
        A most = fmax_(max, edge);
        EACH_KEPT(turn) EACH_ELEMENT(j) most = fmax_(most, v[turn][j]);
        most = TEAM_MAX(most);
#ifdef OTHERS
        if (max != most) sum *= POWER(max - most);
#endif
        max = most;
        EACH_KEPT(turn) EACH_ELEMENT(j) {
#ifdef LOGARITHM
            sum += POWER(v[turn][j] - max);
#else
            v[turn][j] = POWER(v[turn][j] - max);
            sum += v[turn][j];
#endif
        }
        if (at.edge >= 0) sum += POWER(edge - max);
        A summary = SUMMARY(TEAM_SUM(sum));
        if (row < rows) {
            put_edge(y, RESULT(edge, max, summary), at);
            EACH_KEPT(turn) {
#ifdef LOGARITHM
                EACH_ELEMENT(j) v[turn][j] = RESULT(v[turn][j], max, summary);
#else
                EACH_ELEMENT(j) v[turn][j] *= summary;
#endif
                put_numbers(y, v[turn], at, KEPT_WORD(turn));
            }
        }
#ifdef OTHERS
        EACH_BATCH_BACK(at, b) {
            Read r[BATCH];
            A n[VECTOR];
            read_batch_again(r, held, x, at, b);
            EACH_OF_BATCH(u) {
                numbers_of(n, r[u], 1, LOWEST);
                EACH_ELEMENT(j) n[j] = RESULT(n[j], max, summary);
                put_numbers(y, n, at, BATCH_WORD(b, u));
            }
        }
#endif
    }
}

#elif defined(PER)
KERNEL(softmax_rows_backward)(GLOBAL const S *g, GLOBAL const S *y, GLOBAL S *dx, i64 rows, i64 extent) {
    JOINS(1);
#ifdef OTHERS
    SHARED_GIVEN(WORD, held, 2 * HELD_WORDS);
    LOCAL WORD *held_g = held, *held_y = held + HELD_WORDS;
#endif
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        A gs[PER][VECTOR], ys[PER][VECTOR], sum = 0;
        keep(gs, g, at, 0);
        keep(ys, y, at, 0);
        A edge_g = edge_of(g, at, 0), edge_y = edge_of(y, at, 0);
#ifdef OTHERS
        EACH_BATCH(at, b) {
            Read a[BATCH], c[BATCH];
            A m[VECTOR], n[VECTOR];
            read_batch(a, g, at, b);
            read_batch(c, y, at, b);
            hold_batch(held_g, a, b);
            hold_batch(held_y, c, b);
            EACH_OF_BATCH(u) {
                numbers_of(m, a[u], BATCH_WORD(b, u) < at.words, 0);
                numbers_of(n, c[u], BATCH_WORD(b, u) < at.words, 0);
                EACH_ELEMENT(j) sum += SLOPE_TERM(m[j], n[j]);
            }
        }
#endif
        EACH_KEPT(turn) EACH_ELEMENT(j) sum += SLOPE_TERM(gs[turn][j], ys[turn][j]);
        sum = TEAM_SUM(sum + SLOPE_TERM(edge_g, edge_y));
        if (row < rows) {
            put_edge(dx, SLOPE(edge_g, edge_y, sum), at);
            EACH_KEPT(turn) {
                EACH_ELEMENT(j) gs[turn][j] = SLOPE(gs[turn][j], ys[turn][j], sum);
                put_numbers(dx, gs[turn], at, KEPT_WORD(turn));
            }
        }
#ifdef OTHERS
        EACH_BATCH_BACK(at, b) {
            Read a[BATCH], c[BATCH];
            A m[VECTOR], n[VECTOR];
            read_batch_again(a, held_g, g, at, b);
            read_batch_again(c, held_y, y, at, b);
            EACH_OF_BATCH(u) {
                numbers_of(m, a[u], 1, 0);
                numbers_of(n, c[u], 1, 0);
                EACH_ELEMENT(j) m[j] = SLOPE(m[j], n[j], sum);
                put_numbers(dx, m, at, BATCH_WORD(b, u));
            }
        }
#endif
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
        for (idx i = 0; i < extent; i++) {
            A v = LOAD(T, x, at + i * step);
            max = fmax_(max, v);
        }
        EACH_PART(start, end) {
            A part = 0;
            for (idx i = start; i < end; i++) part += POWER(LOAD(T, x, at + i * step) - max);
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

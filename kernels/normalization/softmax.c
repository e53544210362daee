// Softmax, its logarithm and softmax1 along the middle one of three extents, forward and backward.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of the tensors
// ACC: f32 or f64, dtype of the arithmetic
// LOGARITHM: flag, the logarithm of the softmax
// PLUS_ONE: flag, softmax1: 1 is added to the sum of powers
// BACKWARD: flag, the gradient
// COLUMNS: power of 2, columns of a group; without COLUMNS a team takes a row (inner extent 1)
// without COLUMNS: the defines of rows in common.h
// with COLUMNS:
//   ABREAST: power of 2, columns of adjacent threads
//   VECTOR: 1 .. 16, elements of a word
//   WORD: u16 .. u32x4, type of a word
//   BATCH: 1.., words of a thread that are read at once
//   PER: 0
//   KEPT: flag, BATCH words per thread are a whole part, which stays in registers
//   PARTS: flag, a second launch joins the results of the parts

#ifdef LOGARITHM
#define SUMMARY(sum, max) log_(sum)
#define RESULT(x, max, summary) ((x) - (max) - (summary))
#define SLOPE_TERM(g, y) (g)
#define SLOPE(g, y, sum) ((g) - POWER(y) * (sum))
#else
#ifdef PLUS_ONE
// 1 is the power of a further element 0, so the maximum is at least 0.
#define LEAST_MAX ((A)0)
#define SUMMARY(sum, max) ((A)1 / ((sum) + POWER(-(max))))
#else
#define SUMMARY(sum, max) ((A)1 / (sum))
#endif
#define RESULT(x, max, summary) (POWER((x) - (max)) * (summary))
#define SLOPE_TERM(g, y) ((g) * (y))
#define SLOPE(g, y, sum) ((y) * ((g) - (sum)))
#endif

#ifndef LEAST_MAX
#define LEAST_MAX LOWEST
#endif

// A maximum is never NaN. A sum of powers is NaN if an element is.

#ifdef BACKWARD
// In a slice with an undefined softmax, whose y is NaN, elements of x that are -infinity have gradient 0. `x` points at the
// elements of a word.
FUNCTION void drop_masked(A *d, const A *y, GLOBAL const STORAGE(T) *x, int is_inside) {
    int is_bad = y[0] != y[0];
#ifdef COLUMNS
#pragma unroll
    for (int j = 1; j < VECTOR; j++) is_bad |= y[j] != y[j];
#endif
    if (!is_bad || !is_inside) return;
    for (int j = 0; j < VECTOR; j++)
        if (y[j] != y[j] && LOAD(T, x, j) == LOWEST) d[j] = 0;
}
#endif

#ifdef COLUMNS
// A column has a word of VECTOR elements in each of `extent` lines of `width` words. A group takes one part (GROUP_Y), `length`
// lines, of COLUMNS adjacent columns. Each of its MEMBERS reads BATCH words at once. Threads are ordered by ABREAST columns, then
// by lines, then by further columns. The second launch reads in the opposite order, because the end of the first launch's reads is
// still in a cache.
#define MEMBERS (THREADS / COLUMNS)
#define WORKER (LANE / ABREAST % MEMBERS)
// The threads of ABREAST columns.
#define SPAN (ABREAST * MEMBERS)
#define OWN_COLUMN (LANE / SPAN * ABREAST + LANE % ABREAST)

// A part of the thread's column, or of the last column if the thread has none. Positions are in words.
typedef struct {
    i64 column;
    int is_there;
    idx first, step, start, end;
} Part;

#define EACH_COLUMN(c, group) \
    for (i64 base = (group) * COLUMNS, c; c = base + OWN_COLUMN, base < columns; base += GROUPS * COLUMNS)

FUNCTION Part part_of(i64 c, i64 part, i64 columns, i64 extent, i64 width, i64 length) {
    Part p;
    p.is_there = c < columns;
    p.column = p.is_there ? c : columns - 1;
    idx line = (idx)p.column / (idx)width;
    p.first = line * (idx)extent * (idx)width + ((idx)p.column - line * (idx)width);
    p.step = (idx)width;
    p.start = (idx)(part * length);
    p.end = (idx)extent - p.start < (idx)length ? (idx)extent : p.start + (idx)length;
    return p;
}

#ifdef KEPT
#define ROUNDS(p) 1
#else
#define ROUNDS(p) (((p).end - (p).start + BATCH * MEMBERS - 1) / (BATCH * MEMBERS))
#endif
#define LINE(p, round, u) ((p).start + ((round) * BATCH + (u)) * MEMBERS + WORKER)
#define IS_INSIDE(p, round, u) (LINE(p, round, u) < (p).end)
#define EACH_ROUND(p, round) for (idx round = 0; round < ROUNDS(p); round++)
#define EACH_ROUND_BACK(p, round) for (idx round = ROUNDS(p) - 1; round >= 0; round--)

// A line outside of the part is replaced by the part's first line.
FUNCTION void read_round(Read *r, GLOBAL const S *x, Part p, idx round) {
    EACH_OF_BATCH(u) {
        idx line = IS_INSIDE(p, round, u) ? LINE(p, round, u) : p.start;
        r[u].all = ((GLOBAL const WORD *)x)[p.first + line * p.step];
    }
}

FUNCTION void read_round_again(Read *r, GLOBAL const S *x, Part p, idx round) {
#ifndef KEPT
    read_round(r, x, p, round);
#endif
}

FUNCTION void put_word(GLOBAL S *y, const A *v, Part p, idx line) {
    Read r;
    EACH_ELEMENT(j) STORE(T, r.each, j, v[j]);
    if (p.is_there && line < p.end) store_once((GLOBAL WORD *)y + (p.first + line * p.step), r.all);
}

// The position of a part's result for element `j` of the thread's columns.
#define FOUND(part, j) (((part) * columns + p.column) * VECTOR + (j))

// Threads of a span that are joined without memory.
#if WAVE > ABREAST
#define JOINED (SPAN < WAVE ? SPAN : WAVE)
#else
#define JOINED ABREAST
#endif
#define SLOTS (THREADS / JOINED * ABREAST * VECTOR)
#define SLOT(j, joined) (((j) * (THREADS / JOINED) + (joined)) * ABREAST + LANE % ABREAST)

// Joins the values of a column's members in a fixed order; all of them get the result.
LOCAL_FUNCTION void column_join(A *v, LOCAL A *shared, int kind) {
#if WAVE > ABREAST
    EACH_ELEMENT(j) {
#pragma unroll
        for (int by = ABREAST; by < JOINED; by *= 2) {
            A other = from_lane(v[j], by);
            v[j] = BOTH(v[j], other);
        }
    }
#endif
#if SPAN > JOINED
    int own = LANE / JOINED, first = LANE / SPAN * (SPAN / JOINED), is_first = LANE % JOINED < ABREAST;
    BARRIER();
    EACH_ELEMENT(j) if (is_first) shared[SLOT(j, own)] = v[j];
    for (int below = SPAN / JOINED / 2; below > 0; below /= 2) {
        BARRIER();
        EACH_ELEMENT(j) if (is_first && own - first < below)
            shared[SLOT(j, own)] = BOTH(shared[SLOT(j, own)], shared[SLOT(j, own + below)]);
    }
    BARRIER();
    EACH_ELEMENT(j) v[j] = shared[SLOT(j, first)];
#endif
}

#ifndef BACKWARD
// A sum of powers relative to `max`, converted to `most`, which is at least `max`. For -infinity alone it is 0.
FUNCTION A lowered(A sum, A max, A most) { return max == most ? sum : sum * POWER(max - most); }

LOCAL_FUNCTION void join_sums(A *max, A *sum, LOCAL A *shared) {
    A own[VECTOR];
    EACH_ELEMENT(j) own[j] = max[j];
    column_join(max, shared, JOIN_TO_MAX);
    EACH_ELEMENT(j) sum[j] = lowered(sum[j], own[j], max[j]);
    column_join(sum, shared, JOIN_TO_SUM);
}

// The largest element of a part, and the sum of powers relative to it.
LOCAL_FUNCTION void sums_of(A *max, A *sum, Read *r, GLOBAL const S *x, Part p, LOCAL A *shared) {
    EACH_ELEMENT(j) {
        max[j] = LEAST_MAX;
        sum[j] = 0;
    }
    EACH_ROUND(p, round) {
        A v[BATCH][VECTOR];
        read_round(r, x, p, round);
        EACH_OF_BATCH(u) numbers_of(v[u], r[u], IS_INSIDE(p, round, u), LOWEST);
        EACH_ELEMENT(j) {
            A most = max[j], part = 0;
            EACH_OF_BATCH(u) most = fmax_(most, v[u][j]);
            A base = most == LOWEST ? (A)0 : most;
            EACH_OF_BATCH(u) part += POWER(v[u][j] - base);
            sum[j] = lowered(sum[j], max[j], most) + part;
            max[j] = most;
        }
    }
    join_sums(max, sum, shared);
}

KERNEL(softmax_parts)(GLOBAL const S *x, GLOBAL A *maxima, GLOBAL A *sums, i64 columns, i64 extent, i64 width, i64 length) {
    SHARED(A, shared, SLOTS);
    EACH_COLUMN(c, GROUP) {
        Part p = part_of(c, GROUP_Y, columns, extent, width, length);
        Read r[BATCH];
        A max[VECTOR], sum[VECTOR];
        sums_of(max, sum, r, x, p, shared);
        if (WORKER == 0 && p.is_there) {
            EACH_ELEMENT(j) {
                maxima[FOUND(GROUP_Y, j)] = max[j];
                sums[FOUND(GROUP_Y, j)] = sum[j];
            }
        }
    }
}

KERNEL(softmax_columns)(GLOBAL const S *x, GLOBAL S *y, GLOBAL const A *maxima, GLOBAL const A *sums, i64 columns, i64 extent,
                        i64 width, i64 length) {
    SHARED(A, shared, SLOTS);
    EACH_COLUMN(c, GROUPS - 1 - GROUP) {
        Part p = part_of(c, GROUPS_Y - 1 - GROUP_Y, columns, extent, width, length);
        Read r[BATCH];
        A max[VECTOR], sum[VECTOR];
#ifdef PARTS
        EACH_ELEMENT(j) {
            max[j] = LEAST_MAX;
            sum[j] = 0;
            for (i64 i = WORKER; i < GROUPS_Y; i += MEMBERS) {
                A other = maxima[FOUND(i, j)], most = fmax_(max[j], other);
                sum[j] = lowered(sum[j], max[j], most) + lowered(sums[FOUND(i, j)], other, most);
                max[j] = most;
            }
        }
        join_sums(max, sum, shared);
#else
        sums_of(max, sum, r, x, p, shared);
#endif
        EACH_ELEMENT(j) sum[j] = SUMMARY(sum[j], max[j]);
        EACH_ROUND_BACK(p, round) {
            read_round_again(r, x, p, round);
            EACH_OF_BATCH(u) {
                A v[VECTOR];
                numbers_of(v, r[u], 1, 0);
                EACH_ELEMENT(j) v[j] = RESULT(v[j], max[j], sum[j]);
                put_word(y, v, p, LINE(p, round, u));
            }
        }
    }
}

#else
LOCAL_FUNCTION void sums_of(A *sum, Read *gs, Read *ys, GLOBAL const S *g, GLOBAL const S *y, Part p, LOCAL A *shared) {
    EACH_ELEMENT(j) sum[j] = 0;
    EACH_ROUND(p, round) {
        A part[VECTOR];
        EACH_ELEMENT(j) part[j] = 0;
        read_round(gs, g, p, round);
        read_round(ys, y, p, round);
        EACH_OF_BATCH(u) {
            A dy[VECTOR], v[VECTOR];
            numbers_of(dy, gs[u], IS_INSIDE(p, round, u), 0);
            numbers_of(v, ys[u], IS_INSIDE(p, round, u), 0);
            EACH_ELEMENT(j) part[j] += SLOPE_TERM(dy[j], v[j]);
        }
        EACH_ELEMENT(j) sum[j] += part[j];
    }
    column_join(sum, shared, JOIN_TO_SUM);
}

KERNEL(softmax_parts_backward)(GLOBAL const S *g, GLOBAL const S *y, GLOBAL A *sums, i64 columns, i64 extent, i64 width,
                               i64 length) {
    SHARED(A, shared, SLOTS);
    EACH_COLUMN(c, GROUP) {
        Part p = part_of(c, GROUP_Y, columns, extent, width, length);
        Read gs[BATCH], ys[BATCH];
        A sum[VECTOR];
        sums_of(sum, gs, ys, g, y, p, shared);
        if (WORKER == 0 && p.is_there) {
            EACH_ELEMENT(j) sums[FOUND(GROUP_Y, j)] = sum[j];
        }
    }
}

KERNEL(softmax_columns_backward)(GLOBAL const S *g, GLOBAL const S *y, GLOBAL const S *x, GLOBAL S *dx,
                                 GLOBAL const A *sums, i64 columns, i64 extent, i64 width, i64 length) {
    SHARED(A, shared, SLOTS);
    EACH_COLUMN(c, GROUPS - 1 - GROUP) {
        Part p = part_of(c, GROUPS_Y - 1 - GROUP_Y, columns, extent, width, length);
        Read gs[BATCH], ys[BATCH];
        A sum[VECTOR];
#ifdef PARTS
        EACH_ELEMENT(j) {
            sum[j] = 0;
            for (i64 i = WORKER; i < GROUPS_Y; i += MEMBERS) sum[j] += sums[FOUND(i, j)];
        }
        column_join(sum, shared, JOIN_TO_SUM);
#else
        sums_of(sum, gs, ys, g, y, p, shared);
#endif
        EACH_ROUND_BACK(p, round) {
            read_round_again(gs, g, p, round);
            read_round_again(ys, y, p, round);
            EACH_OF_BATCH(u) {
                A dy[VECTOR], v[VECTOR];
                numbers_of(dy, gs[u], 1, 0);
                numbers_of(v, ys[u], 1, 0);
                EACH_ELEMENT(j) dy[j] = SLOPE(dy[j], v[j], sum[j]);
                idx line = LINE(p, round, u);
                drop_masked(dy, v, x + (p.first + line * p.step) * VECTOR, line < p.end);
                put_word(dx, dy, p, line);
            }
        }
    }
}
#endif

#elif !defined(BACKWARD)
KERNEL(softmax_rows)(GLOBAL const S *x, GLOBAL S *y, i64 rows, i64 extent) {
    JOINS(1);
#ifdef OTHERS
    SHARED_GIVEN(WORD, held, HELD_WORDS);
#endif
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        A v[PER][VECTOR], max = LEAST_MAX, sum = 0;
        keep(v, x, at, LOWEST);
        A edge = edge_of(x, at, LOWEST);
#ifdef OTHERS
        // The sum is rescaled when a larger element comes. For -infinity alone it is 0.
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
        A summary = SUMMARY(TEAM_SUM(sum), max);
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

#else
KERNEL(softmax_rows_backward)(GLOBAL const S *g, GLOBAL const S *y, GLOBAL const S *x, GLOBAL S *dx, i64 rows, i64 extent) {
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
            A edge = SLOPE(edge_g, edge_y, sum);
            if (edge_y != edge_y && edge_of(x, at, 0) == LOWEST) edge = 0;
            put_edge(dx, edge, at);
            EACH_KEPT(turn) {
                EACH_ELEMENT(j) gs[turn][j] = SLOPE(gs[turn][j], ys[turn][j], sum);
                drop_masked(gs[turn], ys[turn], x + at.first + POSITION(at, KEPT_WORD(turn), 0), IS_KEPT(at, turn));
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
                idx w = BATCH_WORD(b, u);
                drop_masked(m, n, x + at.first + POSITION(at, w, 0), w < at.words);
                put_numbers(dx, m, at, w);
            }
        }
#endif
    }
}

#endif

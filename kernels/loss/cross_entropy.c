// Cross entropy of logits with class indices, along the middle one of three extents, forward and backward.
//
// `statistics` are the largest logits of all rows, then the logarithms of the sums of e^(x - max). LOGARITHMS have none.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of the logits
// ACC: f32 or f64, dtype of the arithmetic
// I: i32 or i64, dtype of the targets
// LOSS: dtype of the losses of elements; ACC with REDUCED
// Y: dtype of the op's result and of its gradient: that of the logits, or ACC
// PER: a team takes a row (inner extent 1), with the defines of rows in common.h; without PER a thread takes a column
// WEIGHT: flag, classes have weights
// BYTES: flag, classes have numbers of bytes
// SMOOTHING: flag, a share of the target is spread over all classes
// REDUCED: flag, the losses are summed, by the program with TOTAL
// TOTAL: flag, the sum of the losses
// MEAN: flag, the sum is divided by the sum of `counts`; otherwise by `given`
// LOGARITHMS: flag, the logits are log probabilities

typedef STORAGE(Y) SY;

#ifdef TOTAL
// The sum of a thread's elements from `start` to `end`.
FUNCTION A sum_of(GLOBAL const A *x, i64 start, i64 end) {
    A sum = 0;
    for (i64 i = start + LANE; i < end; i += THREADS) sum += x[i];
    return sum;
}

// Sums of parts, one per group.
KERNEL(cross_entropy_parts)(GLOBAL const A *losses, GLOBAL const A *counts, GLOBAL A *loss_parts, GLOBAL A *count_parts,
                            i64 n, i64 part) {
    JOINS(1);
    i64 start = GROUP * part, end = start + part < n ? start + part : n;
    A loss = TEAM_SUM(sum_of(losses, start, end)), count = TEAM_SUM(sum_of(counts, start, end));
    if (LANE == 0) {
        loss_parts[GROUP] = loss;
        count_parts[GROUP] = count;
    }
}

// The reduced loss, and its divisor: the sum of the counts, or `given`.
KERNEL(cross_entropy_total)(GLOBAL const A *losses, GLOBAL const A *counts, GLOBAL SY *y, GLOBAL A *divisor, i64 n,
                            A given) {
    AWAIT_PREVIOUS();
    JOINS(1);
    A loss = TEAM_SUM(sum_of(losses, 0, n)), by = given;
#ifdef MEAN
    by = TEAM_SUM(sum_of(counts, 0, n));
#endif
    loss /= by;
#ifdef BYTES
    // The mean of no bytes is 0.
    if (by == 0) loss = 0;
#endif
    if (LANE == 0) {
        STORE(Y, y, 0, loss);
        *divisor = by;
    }
}

#else
typedef STORAGE(I) SI;
typedef STORAGE(LOSS) SL;
#ifndef PER
typedef STORAGE(T) S;
#endif

#ifdef WEIGHT
#define WEIGHT_OF(k) (weight[k])
#else
#define WEIGHT_OF(k) ((A)1)
#endif

// True for a target that is not ignored. Others are not read and have no gradient.
#define COUNTS(t) ((t) != ignored && (u64)(t) < (u64)extent)

// The largest element, never NaN, and the sum of e^(x - max), which is NaN if an element is.
typedef struct {
    A max, sum;
} Summary;

FUNCTION Summary nothing(void) {
    Summary s;
    s.max = LOWEST;
    s.sum = 0;
    return s;
}

// The base of the exponents: the maximum, or 0 if that is -infinity, because -infinity minus itself is NaN.
FUNCTION A base_of(A max) { return max == LOWEST ? (A)0 : max; }

// The summary relative to `max`, which is at least its own maximum.
FUNCTION Summary rebased(Summary s, A max) {
    s.sum *= POWER(s.max - base_of(max));
    s.max = max;
    return s;
}

// Writes the loss of an element with log probability `logp`. `all` is the weighted sum of the log probabilities of all classes.
FUNCTION void put_loss(GLOBAL SL *losses, GLOBAL A *counts, GLOBAL const A *weight, GLOBAL const A *bytes, i64 row, i64 t,
                       A logp, A all, A rest, A share) {
    A loss = -logp * WEIGHT_OF(t), count = WEIGHT_OF(t);
#ifdef SMOOTHING
    loss = loss * rest - all * share;
#endif
#ifdef BYTES
    count = bytes[t];
    loss *= count;
#endif
    STORE(LOSS, losses, row, loss);
#ifdef REDUCED
    counts[row] = count;
#endif
}

// Writes the loss of an ignored element, 0, or of a bad class, NaN.
FUNCTION void put_none(GLOBAL SL *losses, GLOBAL A *counts, i64 row, i64 t, i64 ignored, GLOBAL i64 *status) {
    A loss = 0;
    if (t != ignored) {
        note(status, row, t);
        loss = HIGHEST - HIGHEST;
    }
    STORE(LOSS, losses, row, loss);
#ifdef REDUCED
    counts[row] = 0;
#endif
}

// The gradient of a row's logits: `p * sum`, minus `own` for the target, minus `even` times the weight of each class.
typedef struct {
    A own, even, sum;
} Slopes;

FUNCTION Slopes slopes(GLOBAL const SY *dy, GLOBAL const A *divisor, GLOBAL const A *weight,
                       GLOBAL const A *weights, GLOBAL const A *bytes, i64 row, i64 t, i64 extent, A rest, A share) {
    Slopes s;
#ifdef REDUCED
    A g = LOAD(Y, dy, 0);
#ifdef BYTES
    // If all bytes are 0, the loss is 0.
    g = *divisor == 0 ? (A)0 : g / *divisor * bytes[t];
#else
    g /= *divisor;
#endif
#else
    A g = LOAD(Y, dy, row);
#endif
    s.own = g * WEIGHT_OF(t);
    s.even = 0;
    s.sum = s.own;
#ifdef SMOOTHING
    s.own *= rest;
    s.even = g * share;
#ifdef WEIGHT
    s.sum = s.own + s.even * *weights;
#else
    s.sum = s.own + s.even * (A)extent;
#endif
#endif
    return s;
}

// True for a row whose softmax is undefined. The gradient of its logits is 0 where they are -infinity, else NaN.
#define IS_BAD(logarithm) ((logarithm) - (logarithm) != 0)

#ifdef LOGARITHMS
#define PART_OF_ALL(x, max, logarithm, sum) ((A)0)
#else
#define PART_OF_ALL(x, max, logarithm, sum) (POWER((x) - (max) - (logarithm)) * (sum))
#endif

#ifdef PER
KERNEL(cross_entropy_rows)(GLOBAL const S *x, GLOBAL const SI *target, GLOBAL const A *weight, GLOBAL const A *bytes,
                           GLOBAL SL *losses, GLOBAL A *counts, GLOBAL A *statistics, i64 rows, i64 extent, i64 ignored,
                           A rest, A share, GLOBAL i64 *status) {
    LET_NEXT_START();
    JOINS(1);
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        i64 t = target[at.row];
        int is_counted = COUNTS(t);
        if (!is_counted) {
            at.words = 0;
            at.edge = -1;
        }
        Summary s = nothing();
        // A single pass: the sum is rescaled when a larger element comes.
        EACH_BATCH(at, b) {
            Read r[BATCH];
            A v[BATCH][VECTOR], max = s.max, sum = 0;
            read_batch(r, x, at, b);
            EACH_OF_BATCH(u) {
                numbers_of(v[u], r[u], BATCH_WORD(b, u) < at.words, LOWEST);
                EACH_ELEMENT(j) max = fmax_(max, v[u][j]);
            }
            s = rebased(s, max);
            EACH_OF_BATCH(u) EACH_ELEMENT(j) sum += POWER(v[u][j] - base_of(max));
            s.sum += sum;
        }
        A edge = edge_of(x, at, LOWEST);
        if (at.edge >= 0) {
            s = rebased(s, fmax_(s.max, edge));
            s.sum += POWER(edge - base_of(s.max));
        }
        A max = TEAM_MAX(s.max), all = 0;
        A logarithm = log_(TEAM_SUM(rebased(s, max).sum));
#ifdef SMOOTHING
        EACH_BATCH_BACK(at, b) {
            Read r[BATCH];
            read_batch(r, x, at, b);
            EACH_OF_BATCH(u) {
                idx w = BATCH_WORD(b, u);
                if (w >= at.words) continue;
                EACH_ELEMENT(j) all += WEIGHT_OF(POSITION(at, w, j)) * ((A)LOAD(T, r[u].each, j) - max - logarithm);
            }
        }
        if (at.edge >= 0) all += WEIGHT_OF(at.edge) * (edge - max - logarithm);
        all = TEAM_SUM(all);
#endif
        if (MEMBER == 0 && row < rows) {
            statistics[row] = max;
            statistics[rows + row] = logarithm;
            if (is_counted) {
                A logp = LOAD(T, x, at.first + (idx)t) - max - logarithm;
                put_loss(losses, counts, weight, bytes, row, t, logp, all, rest, share);
            } else {
                put_none(losses, counts, row, t, ignored, status);
            }
        }
    }
}

KERNEL(cross_entropy_rows_backward)(GLOBAL const SY *dy, GLOBAL const A *divisor, GLOBAL const S *x,
                                    GLOBAL const SI *target, GLOBAL const A *weight, GLOBAL const A *weights,
                                    GLOBAL const A *bytes, GLOBAL const A *statistics, GLOBAL S *dx, i64 rows, i64 extent,
                                    i64 ignored, A rest, A share) {
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        i64 t = target[at.row];
        A v[VECTOR];
        if (row >= rows) continue;
        if (!COUNTS(t)) {
            EACH_ELEMENT(j) v[j] = 0;
            EACH_BATCH(at, b) EACH_OF_BATCH(u) put_numbers(dx, v, at, BATCH_WORD(b, u));
            put_edge(dx, 0, at);
            continue;
        }
        Slopes s = slopes(dy, divisor, weight, weights, bytes, row, t, extent, rest, share);
#ifndef LOGARITHMS
        A max = statistics[row], logarithm = statistics[rows + row];
        int is_bad = IS_BAD(logarithm);
#endif
        EACH_BATCH(at, b) {
#ifndef LOGARITHMS
            Read r[BATCH];
            read_batch(r, x, at, b);
#endif
            EACH_OF_BATCH(u) {
                idx w = BATCH_WORD(b, u), own = (idx)t - POSITION(at, w, 0);
#ifdef LOGARITHMS
                EACH_ELEMENT(j) v[j] = j == own ? -s.own : 0;
#else
                EACH_ELEMENT(j) v[j] = PART_OF_ALL((A)LOAD(T, r[u].each, j), max, logarithm, s.sum);
                if (own >= 0 && own < VECTOR) {
                    EACH_ELEMENT(j) if (j == own) v[j] -= s.own;
                }
#endif
#ifdef SMOOTHING
                if (w < at.words) {
                    EACH_ELEMENT(j) v[j] -= s.even * WEIGHT_OF(POSITION(at, w, j));
                }
#endif
#ifndef LOGARITHMS
                if (is_bad && w < at.words)
                    for (int j = 0; j < VECTOR; j++)
                        if (LOAD(T, x, at.first + POSITION(at, w, j)) == LOWEST) v[j] = 0;
#endif
                put_numbers(dx, v, at, w);
            }
        }
        if (at.edge >= 0) {
            A d = PART_OF_ALL(edge_of(x, at, 0), max, logarithm, s.sum);
#ifdef SMOOTHING
            d -= s.even * WEIGHT_OF(at.edge);
#endif
            if (at.edge == (idx)t) d -= s.own;
#ifndef LOGARITHMS
            if (is_bad && edge_of(x, at, 0) == LOWEST) d = 0;
#endif
            put_edge(dx, d, at);
        }
    }
}

#else
// Elements of a column that are read at once, and the length of the parts of its sums.
#define STEP 8
#define PART 256
#define EACH_STEP(j) _Pragma("unroll") for (int j = 0; j < STEP; j++)
#define EACH_PART(start, end) for (idx start = 0, end; end = start + PART < extent ? start + PART : (idx)extent, start < extent; start = end)

// The summary of classes `start` to `end` of a column, in a single pass.
FUNCTION Summary part_of(GLOBAL const S *column, idx step, idx start, idx end) {
    Summary s = nothing();
    for (idx i = start; i < end; i += STEP) {
        A v[STEP], max = s.max, sum = 0;
        EACH_STEP(j) v[j] = i + j < end ? (A)LOAD(T, column, (i + j) * step) : LOWEST;
        EACH_STEP(j) max = fmax_(max, v[j]);
        s = rebased(s, max);
        EACH_STEP(j) sum += POWER(v[j] - base_of(max));
        s.sum += sum;
    }
    return s;
}

FUNCTION Summary joined(Summary a, Summary b) {
    A max = a.max > b.max ? a.max : b.max;
    a = rebased(a, max);
    a.sum += rebased(b, max).sum;
    return a;
}

KERNEL(cross_entropy_columns)(GLOBAL const S *x, GLOBAL const SI *target, GLOBAL const A *weight, GLOBAL const A *bytes,
                              GLOBAL SL *losses, GLOBAL A *counts, GLOBAL A *statistics, i64 columns, i64 extent,
                              i64 ignored, A rest, A share, GLOBAL i64 *status, i64 inner) {
    LET_NEXT_START();
    for (i64 c = GROUP * THREADS + LANE; c < columns; c += GROUPS * THREADS) {
        i64 t = target[c];
        if (!COUNTS(t)) {
            put_none(losses, counts, c, t, ignored, status);
            continue;
        }
        // Adjacent columns are adjacent in memory, or are short rows.
        GLOBAL const S *column = x + (idx)(c / inner * extent * inner + c % inner);
        idx step = (idx)inner;
#ifdef LOGARITHMS
        put_loss(losses, counts, weight, bytes, c, t, LOAD(T, column, (idx)t * step), 0, rest, share);
#else
        Summary s = nothing();
        EACH_PART(start, end) s = joined(s, part_of(column, step, start, end));
        A logarithm = log_(s.sum), all = 0;
#ifdef SMOOTHING
        EACH_PART(start, end) {
            A part = 0;
            for (idx i = start; i < end; i++) part += WEIGHT_OF(i) * (LOAD(T, column, i * step) - s.max - logarithm);
            all += part;
        }
#endif
        statistics[c] = s.max;
        statistics[columns + c] = logarithm;
        A logp = LOAD(T, column, (idx)t * step) - s.max - logarithm;
        put_loss(losses, counts, weight, bytes, c, t, logp, all, rest, share);
#endif
    }
}

// A thread takes an element.
KERNEL(cross_entropy_columns_backward)(GLOBAL const SY *dy, GLOBAL const A *divisor, GLOBAL const S *x,
                                       GLOBAL const SI *target, GLOBAL const A *weight, GLOBAL const A *weights,
                                       GLOBAL const A *bytes, GLOBAL const A *statistics, GLOBAL S *dx, i64 columns,
                                       i64 extent, i64 ignored, A rest, A share, i64 inner) {
    for (i64 e = GROUP * THREADS + LANE; e < columns * extent; e += GROUPS * THREADS) {
        idx above = (idx)e / (idx)inner, k = above % (idx)extent;
        idx c = above / (idx)extent * (idx)inner + (idx)e % (idx)inner;
        i64 t = target[c];
        A d = 0;
        if (COUNTS(t)) {
            Slopes s = slopes(dy, divisor, weight, weights, bytes, c, t, extent, rest, share);
            d = PART_OF_ALL(LOAD(T, x, e), statistics[c], statistics[columns + c], s.sum);
#ifdef SMOOTHING
            d -= s.even * WEIGHT_OF(k);
#endif
            if (k == (idx)t) d -= s.own;
#ifndef LOGARITHMS
            if (IS_BAD(statistics[columns + c]) && LOAD(T, x, e) == LOWEST) d = 0;
#endif
        }
        STORE(T, dx, e, d);
    }
}
#endif
#endif

// Normalisation of channels over a batch, forward and backward. x is [batch, channels, inner].
//
// A channel consists of words of VECTOR elements, `width` of them adjacent in memory, and is divided into parts of `length` words.
// A group takes one part (GROUP_Y) of COLUMNS adjacent channels. The second kernel reads a part in the opposite order, because the
// end of the first kernel's reads is still in a cache.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of x
// P: dtype of weight and bias
// R: dtype of running statistics
// ACC: f32 or f64, dtype of the arithmetic
// COLUMNS: 1, or more if `inner` is short; channels of a group
// VECTOR: 1 .. 16, elements of a word
// WORD: u16 .. u32x4, type of a word
// BATCH: 1.., words of a thread that are read at once
// PER: 0
// AT_ONCE: groups that a multiprocessor should run together
// WIDE: flag, positions have 64 bits
// WEIGHT, BIAS: flags, there is a weight, a bias
// COUNTED: flag, the number of batches is incremented
// GIVEN: flag, mean and variance are running statistics; with BACKWARD, constants
// UPDATED: flag, running statistics are updated
// MOMENTUM: flag, a batch has the weight `momentum` in running statistics; otherwise all batches have the same weight
// BACKWARD: flag, the gradient
// SUMS: flag, with BACKWARD, there are sums of `parts` parts
// DX, PARAMETERS: flags, with BACKWARD, the gradients that are wanted

typedef STORAGE(P) SP;
typedef STORAGE(R) SR;
#ifdef WIDE
typedef u64 place;
#else
typedef u32 place;
#endif

// The threads of a channel, and the number of this one among them.
#define MEMBERS (THREADS / COLUMNS)
#define WORKER (LANE / COLUMNS)

#if COLUMNS == 1
#define CHANNEL_JOINS() JOINS(2)
#define CHANNEL_SUM(v) team_join_one(v, SIDE(2), JOIN_TO_SUM)
#define CHANNEL_SUMS(v) team_join(v, 2, SIDE(2), JOIN_TO_SUM)
#else
#define CHANNEL_JOINS() SHARED(A, shared, THREADS)
#define CHANNEL_SUM(v) column_sum(v, shared)
#define CHANNEL_SUMS(v) \
    (v)[0] = column_sum((v)[0], shared); \
    (v)[1] = column_sum((v)[1], shared)

// The sum over a channel's threads, in a fixed order.
LOCAL_FUNCTION A column_sum(A v, LOCAL A *shared) {
    BARRIER();
    shared[LANE] = v;
    for (int below = MEMBERS / 2; below > 0; below /= 2) {
        BARRIER();
        if (WORKER < below) shared[LANE] += shared[LANE + below * COLUMNS];
    }
    BARRIER();
    return shared[LANE % COLUMNS];
}
#endif

// A part of the thread's channel, or of the last channel if the thread has none.
typedef struct {
    i64 channel, channels;
    int is_there;
    idx start, end, width;
} Part;

FUNCTION Part part_of(i64 group, i64 part, i64 channels, i64 words, i64 width, i64 length) {
    Part p;
    i64 c = group * COLUMNS + LANE % COLUMNS, end = (part + 1) * length;
    p.is_there = c < channels;
    p.channel = p.is_there ? c : channels - 1;
    p.channels = channels;
    p.start = (idx)(part * length);
    p.end = (idx)(end < words ? end : words);
    p.width = (idx)width;
    return p;
}

// The position of a word of the channel, in words. A word outside of the part is replaced by another one.
FUNCTION idx word_of(Part p, idx w) {
    place at = (place)(w < p.end ? w : p.start), width = (place)p.width;
    return (idx)((at / width * (place)p.channels + (place)p.channel) * width + at % width);
}

#define ROUNDS(p) (((p).end - (p).start + BATCH * MEMBERS - 1) / (BATCH * MEMBERS))
#define ROUND_WORD(p, round, u) ((p).start + ((round) * BATCH + (u)) * MEMBERS + WORKER)
#define EACH_ROUND(p, round) for (idx round = 0; round < ROUNDS(p); round++)
#define EACH_ROUND_BACK(p, round) for (idx round = ROUNDS(p) - 1; round >= 0; round--)

FUNCTION void read_round(Read *r, GLOBAL const S *x, Part p, idx round) {
    EACH_OF_BATCH(u) r[u].all = ((GLOBAL const WORD *)x)[word_of(p, ROUND_WORD(p, round, u))];
}

FUNCTION void read_round_once(Read *r, GLOBAL const S *x, Part p, idx round) {
    EACH_OF_BATCH(u) r[u].all = load_once((GLOBAL const WORD *)x + word_of(p, ROUND_WORD(p, round, u)));
}

FUNCTION void put_word(GLOBAL S *y, const A *v, Part p, idx w) {
    Read r;
    EACH_ELEMENT(j) STORE(T, r.each, j, v[j]);
    if (p.is_there && w < p.end) store_once((GLOBAL WORD *)y + word_of(p, w), r.all);
}

#ifndef BACKWARD
#include "moments.h"

// The mean, and the mean of squared deviations from it, from sums relative to `mean`: `deviations` are the sums of the differences
// from `mean` and of their squares. The smaller the differences, the more exact is the mean.
FUNCTION void correct(A *mean, A *square, const A *deviations, A count) {
    A shift = deviations[0] / count;
    *mean += shift;
    *square = deviations[1] / count - shift * shift;
    *square = *square < 0 ? (A)0 : *square;
}

// The pivot: an element of the channel if the elements differ little from it, else 0. Sums are relative to the pivot, which is
// added at the end. A pivot far from the mean would round the mean to its own digits.
FUNCTION A pivot_of(GLOBAL const S *x, Part p, i64 words) {
    idx inner = (idx)p.width * VECTOR, count = (idx)words * VECTOR;
    A pivot = 0, apart = 0;
    for (int i = 0; i < 4; i++) {
        idx at = i < 3 ? count / 4 * (idx)i : count - 1;
        A v = LOAD(T, x, (at / inner * (idx)p.channels + (idx)p.channel) * inner + at % inner);
        if (i == 0) pivot = v;
        apart = fabs_(v - pivot) > apart ? fabs_(v - pivot) : apart;
    }
    return apart * 256 <= fabs_(pivot) && fabs_(pivot) < (A)1e30f ? pivot : (A)0;
}

// The means of parts, relative to the pivot, and the means of their squared deviations, [parts, channels]. Increments the number of
// batches.
KERNEL(batch_norm_parts)(GLOBAL const S *x, GLOBAL A *part_means, GLOBAL A *part_squares, GLOBAL i64 *batches, i64 channels, i64 words,
                         i64 width, i64 length) {
    CHANNEL_JOINS();
    Part p = part_of(GROUP, GROUP_Y, channels, words, width, length);
    Moments m = NO_MOMENTS;
    A pivot = pivot_of(x, p, words);
    idx round = 0;
    for (; ROUND_WORD(p, round, BATCH - 1) < p.end; round++) {
        Read r[BATCH];
        A v[BATCH * VECTOR];
        read_round(r, x, p, round);
        EACH_OF_BATCH(u) numbers_of(v + u * VECTOR, r[u], 1, 0);
#pragma unroll
        for (int i = 0; i < BATCH * VECTOR; i++) v[i] -= pivot;
        add_values(&m, v, BATCH * VECTOR);
    }
    for (idx w = ROUND_WORD(p, round, 0); w < p.end; w += MEMBERS) {
        Read r;
        A v[VECTOR];
        r.all = ((GLOBAL const WORD *)x)[word_of(p, w)];
        numbers_of(v, r, 1, 0);
        EACH_ELEMENT(j) v[j] -= pivot;
        add_values(&m, v, VECTOR);
    }
    A count = (A)((p.end - p.start) * VECTOR), mean = CHANNEL_SUM(m.sum) / count, square, deviations[2];
    deviations[0] = m.count * (m.mean - mean);
    deviations[1] = squares_about(mean, m.count, m.mean, m.squares);
    CHANNEL_SUMS(deviations);
    correct(&mean, &square, deviations, count);
    if (WORKER == 0 && p.is_there) {
        part_means[GROUP_Y * channels + p.channel] = mean;
        part_squares[GROUP_Y * channels + p.channel] = square;
    }
#ifdef COUNTED
    if (GROUP == 0 && GROUP_Y == 0 && LANE == 0) batches[0] += 1;
#endif
}

// y = (x - mean) rstd weight + bias. Joins the means and squared deviations of the parts.
KERNEL(batch_norm)(GLOBAL const S *x, GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL const A *part_means,
                   GLOBAL const A *part_squares, GLOBAL SR *running_mean, GLOBAL SR *running_var, GLOBAL const i64 *batches,
                   GLOBAL S *y, GLOBAL A *means, GLOBAL A *rstds, i64 channels, i64 words, i64 width, i64 length, A eps,
                   A momentum) {
    i64 part = GROUPS_Y - 1 - GROUP_Y;
    Part p = part_of(GROUPS - 1 - GROUP, part, channels, words, width, length);
#ifdef GIVEN
    A mean = LOAD(R, running_mean, p.channel), var = LOAD(R, running_var, p.channel), rstd = (A)1 / sqrt_(var + eps);
#else
    CHANNEL_JOINS();
    A count = (A)words * VECTOR, sum = 0, var, deviations[2];
#define OWN(i) ((A)((i) < GROUPS_Y - 1 ? length : words - (i) * length) * VECTOR)
    for (i64 i = WORKER; i < GROUPS_Y; i += MEMBERS) sum += OWN(i) * part_means[i * channels + p.channel];
    A mean = CHANNEL_SUM(sum) / count;
    deviations[0] = deviations[1] = 0;
    for (i64 i = WORKER; i < GROUPS_Y; i += MEMBERS) {
        i64 at = i * channels + p.channel;
        A own = OWN(i), of_part = part_means[at];
        deviations[0] += own * (of_part - mean);
        deviations[1] += squares_about(mean, own, of_part, own * part_squares[at]);
    }
    CHANNEL_SUMS(deviations);
    correct(&mean, &var, deviations, count);
    mean += pivot_of(x, p, words);
    A rstd = (A)1 / sqrt_(var + eps);
    if (!IS_IN_RANGE(var, eps)) {
        idx inner = (idx)width * VECTOR;
        Slice slice = {(idx)p.channel * inner, inner, (idx)channels * inner, (idx)words * VECTOR};
        Spread spread = spread_of(x, slice, 1);
        mean = spread.mean;
        var = spread.deviation * spread.deviation;
        rstd = inverse_of(spread.deviation, eps);
    }
#endif
    if (part == 0 && WORKER == 0 && p.is_there) {
        means[p.channel] = mean;
        rstds[p.channel] = rstd;
#ifdef UPDATED
#ifndef MOMENTUM
        momentum = (A)1 / (A)batches[0];
#endif
        STORE(R, running_mean, p.channel, ((A)1 - momentum) * LOAD(R, running_mean, p.channel) + momentum * mean);
        var = var * (count / (count - 1));
        STORE(R, running_var, p.channel, ((A)1 - momentum) * LOAD(R, running_var, p.channel) + momentum * var);
#endif
    }
    A scale = 1, shift = 0;
#ifdef WEIGHT
    scale = LOAD(P, weight, p.channel);
#endif
#ifdef BIAS
    shift = LOAD(P, bias, p.channel);
#endif
    EACH_ROUND_BACK(p, round) {
        Read r[BATCH];
        read_round_once(r, x, p, round);
        EACH_OF_BATCH(u) {
            A v[VECTOR];
            numbers_of(v, r[u], 1, 0);
            EACH_ELEMENT(j) v[j] = STANDARDISED(v[j], mean, rstd) * scale + shift;
            put_word(y, v, p, ROUND_WORD(p, round, u));
        }
    }
}

#else

// The sums over each part of dy xhat and of dy, [parts, channels]. xhat = (x - mean) rstd
KERNEL(batch_norm_backward_parts)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                                  GLOBAL A *slopes, GLOBAL A *sums, i64 channels, i64 words, i64 width, i64 length) {
    CHANNEL_JOINS();
    Part p = part_of(GROUP, GROUP_Y, channels, words, width, length);
    A mean = means[p.channel], rstd = rstds[p.channel], slope = 0, sum = 0;
    EACH_ROUND(p, round) {
        Read gs[BATCH], xs[BATCH];
        A of_round = 0, sum_of_round = 0;
        read_round(gs, g, p, round);
        read_round(xs, x, p, round);
        EACH_OF_BATCH(u) {
            A dy[VECTOR], v[VECTOR];
            numbers_of(dy, gs[u], ROUND_WORD(p, round, u) < p.end, 0);
            numbers_of(v, xs[u], 1, 0);
            EACH_ELEMENT(j) {
                of_round += dy[j] * STANDARDISED(v[j], mean, rstd);
                sum_of_round += dy[j];
            }
        }
        slope += of_round;
        sum += sum_of_round;
    }
    slope = CHANNEL_SUM(slope);
    sum = CHANNEL_SUM(sum);
    if (WORKER == 0 && p.is_there) {
        slopes[GROUP_Y * channels + p.channel] = slope;
        sums[GROUP_Y * channels + p.channel] = sum;
    }
}

// dx = weight rstd (dy - mean(dy) - xhat mean(dy xhat)), or weight rstd dy for GIVEN statistics; dweight = sum(dy xhat), dbias =
// sum(dy).
KERNEL(batch_norm_backward)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                            GLOBAL const SP *weight, GLOBAL const A *slopes, GLOBAL const A *sums, GLOBAL S *dx,
                            GLOBAL SP *dweight, GLOBAL SP *dbias, i64 channels, i64 words, i64 width, i64 length,
                            i64 parts) {
    i64 part = GROUPS_Y - 1 - GROUP_Y;
    Part p = part_of(GROUPS - 1 - GROUP, part, channels, words, width, length);
#ifdef SUMS
    CHANNEL_JOINS();
    A slope = 0, sum = 0;
    for (i64 i = WORKER; i < parts; i += MEMBERS) {
        slope += slopes[i * channels + p.channel];
        sum += sums[i * channels + p.channel];
    }
    slope = CHANNEL_SUM(slope);
    sum = CHANNEL_SUM(sum);
#ifdef PARAMETERS
    if (part == 0 && WORKER == 0 && p.is_there) {
#ifdef WEIGHT
        STORE(P, dweight, p.channel, slope);
#endif
#ifdef BIAS
        STORE(P, dbias, p.channel, sum);
#endif
    }
#endif
#endif
#ifdef DX
    A mean = means[p.channel], rstd = rstds[p.channel], scale = rstd;
#ifdef WEIGHT
    scale *= LOAD(P, weight, p.channel);
#endif
#ifndef GIVEN
    slope /= (A)words * VECTOR;
    sum /= (A)words * VECTOR;
#endif
    EACH_ROUND_BACK(p, round) {
        Read gs[BATCH], xs[BATCH];
        read_round_once(gs, g, p, round);
#ifndef GIVEN
        read_round_once(xs, x, p, round);
#endif
        EACH_OF_BATCH(u) {
            A dy[VECTOR];
            numbers_of(dy, gs[u], 1, 0);
#ifndef GIVEN
            A v[VECTOR];
            numbers_of(v, xs[u], 1, 0);
            EACH_ELEMENT(j) dy[j] = dy[j] - sum - STANDARDISED(v[j], mean, rstd) * slope;
#endif
            EACH_ELEMENT(j) dy[j] *= scale;
            put_word(dx, dy, p, ROUND_WORD(p, round, u));
        }
    }
#endif
}
#endif

// Normalisation of channels over a batch, forward and backward. x is [batch, channels, inner].
//
// A word has elements of CHANNELS channels. A channel consists of words of VECTOR elements, `width` of them adjacent in memory, and is
// divided into parts of `length` words. A group takes one part (GROUP_Y) of COLUMNS adjacent words' channels, of which there are
// `channels`. The second kernel reads a part in the opposite order, because the end of the first kernel's reads is still in a cache.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of x
// P: dtype of weight and bias
// R: dtype of running statistics
// ACC: f32 or f64, dtype of the arithmetic
// COLUMNS: 1, or more if `inner` is short; words of a group that are adjacent in memory and belong to different channels
// VECTOR: 1 .. 16, elements of a word
// CHANNELS: 1, or VECTOR where channels are adjacent in memory; channels of a word
// WORD: u16 .. u32x4, type of a word
// BATCH: 1.., words of a thread that are read at once
// PER: 0
// AT_ONCE: groups that a multiprocessor should run together
// WIDE: flag, positions have 64 bits
// WEIGHT, BIAS: flags, there is a weight, a bias
// COUNTED: flag, the number of batches is incremented
// JOINED: flag, a `.._join` launch has reduced the partial statistics (forward) or sums (backward)
// OF_WORDS: flag, with CHANNELS 1: the parts are those of words of several channels
// RELU: flag, y is max(y, 0); with BACKWARD, of the given y
// RELU_OF_X: flag, with BACKWARD, y is max(y, 0), and is computed again from x
// RESIDUAL: flag, a tensor is added before the maximum; with BACKWARD, its gradient is written
// ADDED: flag, with BACKWARD, the sums are of dy and a further term of it; needs RESIDUAL
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

// The sums of `n` numbers over a channel's threads, in a fixed order; n is at most 2 CHANNELS.
#if COLUMNS == 1 && CHANNELS == 1
#define MEMBERS THREADS
#define WORKER LANE
#define CHANNEL_JOINS() JOINS(2)
#define CHANNEL_SUMS(v, n) team_join(v, n, SIDE(2), JOIN_TO_SUM)
#else
#include "reduction/columns.h"
#define CHANNEL_JOINS() COLUMN_JOINS(2 * CHANNELS)
#define CHANNEL_SUMS(v, n) column_sums(v, n, shared)
#endif

// The parts that a thread joins, RUN of them at once. Only programs with CHANNELS 1 join parts.
#ifdef OF_WORDS
#define RUN 8
#else
#define RUN 4
#endif
#define EACH_RUN(first) for (idx first = 0; first < (idx)parts; first += RUN * MEMBERS)
#define EACH_OF_RUN(u) _Pragma("unroll") for (int u = 0; u < RUN; u++)
#define RUN_PART(first, u) ((first) + (u) * MEMBERS + WORKER)
#define OF_RUN(of_parts, first, u) \
    (RUN_PART(first, u) < (idx)parts ? (of_parts)[RUN_PART(first, u) * (idx)p.channels + (idx)p.channel] : (A)0)

#define EACH_CHANNEL(k) _Pragma("unroll") for (int k = 0; k < CHANNELS; k++)
// The channel of element j of a word.
#define CHANNEL_OF(j) (CHANNELS > 1 ? (j) : 0)
// Elements of a word that belong to one channel.
#define EACH (VECTOR / CHANNELS)
// Channel k of the thread's word, and the number of all channels.
#define OWN_CHANNEL(p, k) ((p).channel * CHANNELS + (k))
#define ALL_CHANNELS(p) ((p).channels * CHANNELS)

// A part of the channels of the thread's words, or of the last ones if the thread has none.
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
    place at = (place)(w < p.end ? w : p.start);
#if CHANNELS > 1
    return (idx)(at * (place)p.channels + (place)p.channel);
#else
    place width = (place)p.width;
    return (idx)((at / width * (place)p.channels + (place)p.channel) * width + at % width);
#endif
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

// A word that is read again.
FUNCTION void put_word_again(GLOBAL S *y, const A *v, Part p, idx w) {
    Read r;
    EACH_ELEMENT(j) STORE(T, r.each, j, v[j]);
    if (p.is_there && w < p.end) ((GLOBAL WORD *)y)[word_of(p, w)] = r.all;
}

#ifndef BACKWARD
#include "normalization/moments.h"

// The mean, and the mean of squared deviations from it, from sums relative to `mean`: `deviations` are the sums of the differences
// from `mean` and of their squares. The smaller the differences, the more exact is the mean.
FUNCTION void correct(A *mean, A *square, const A *deviations, A count) {
    A shift = deviations[0] / count;
    *mean += shift;
    *square = deviations[1] / count - shift * shift;
    *square = *square < 0 ? (A)0 : *square;
}

// The pivots of the channels of a word: elements of the channels if these differ little from it, else 0, or for words of several channels
// means of elements. Sums are relative to the pivot, which is added at the end. A pivot far from the mean would round the mean to its
// own digits.
FUNCTION void pivots_of(A *pivot, GLOBAL const S *x, Part p, i64 words) {
#if CHANNELS > 1 || defined(OF_WORDS)
    EACH_CHANNEL(k) pivot[k] = 0;
    for (int i = 0; i < 4; i++) {
        idx at = (i < 3 ? (idx)words / 4 * (idx)i : (idx)words - 1) * (idx)p.channels + (idx)p.channel;
        Read r;
        A v[VECTOR];
        r.all = ((GLOBAL const WORD *)x)[at];
        numbers_of(v, r, 1, 0);
        EACH_CHANNEL(k) pivot[k] += (A)0.25f * v[k];
    }
    EACH_CHANNEL(k) pivot[k] = fabs_(pivot[k]) < (A)1e30f ? pivot[k] : (A)0;
#else
    idx inner = (idx)p.width * VECTOR, count = (idx)words * VECTOR;
    A apart = 0;
    for (int i = 0; i < 4; i++) {
        idx at = i < 3 ? count / 4 * (idx)i : count - 1;
        A v = LOAD(T, x, (at / inner * (idx)p.channels + (idx)p.channel) * inner + at % inner);
        if (i == 0) pivot[0] = v;
        apart = fabs_(v - pivot[0]) > apart ? fabs_(v - pivot[0]) : apart;
    }
    if (!(apart * 256 <= fabs_(pivot[0]) && fabs_(pivot[0]) < (A)1e30f)) pivot[0] = 0;
#endif
}

// The means of parts, relative to the pivot, and the means of their squared deviations, [parts, channels]. Increments the number of
// batches.
KERNEL(batch_norm_parts)(GLOBAL const S *x, GLOBAL A *part_means, GLOBAL A *part_squares, GLOBAL i64 *batches, i64 channels, i64 words,
                         i64 width, i64 length) {
    LET_NEXT_START();
    CHANNEL_JOINS();
    Part p = part_of(GROUP, GROUP_Y, channels, words, width, length);
    A count = (A)((p.end - p.start) * EACH), mean[CHANNELS], square[CHANNELS], pivot[CHANNELS], deviations[2 * CHANNELS];
    pivots_of(pivot, x, p, words);
#if CHANNELS > 1
    // Sums relative to a pivot among the elements lose few digits. They take less arithmetic than means.
    EACH_CHANNEL(k) deviations[2 * k] = deviations[2 * k + 1] = 0;
    EACH_ROUND(p, round) {
        Read r[BATCH];
        read_round(r, x, p, round);
        EACH_OF_BATCH(u) {
            A v[VECTOR];
            if (ROUND_WORD(p, round, u) >= p.end) continue;
            numbers_of(v, r[u], 1, 0);
            EACH_CHANNEL(k) {
                A apart = v[k] - pivot[k];
                deviations[2 * k] += apart;
                deviations[2 * k + 1] += apart * apart;
            }
        }
    }
    EACH_CHANNEL(k) mean[k] = 0;
#else
    Moments m = NO_MOMENTS;
    idx round = 0;
    for (; ROUND_WORD(p, round, BATCH - 1) < p.end; round++) {
        Read r[BATCH];
        A v[BATCH * VECTOR];
        read_round(r, x, p, round);
        EACH_OF_BATCH(u) numbers_of(v + u * VECTOR, r[u], 1, 0);
#pragma unroll
        for (int i = 0; i < BATCH * VECTOR; i++) v[i] -= pivot[0];
        add_values(&m, v, BATCH * VECTOR);
    }
    for (idx w = ROUND_WORD(p, round, 0); w < p.end; w += MEMBERS) {
        Read r;
        A v[VECTOR];
        r.all = ((GLOBAL const WORD *)x)[word_of(p, w)];
        numbers_of(v, r, 1, 0);
        EACH_ELEMENT(j) v[j] -= pivot[0];
        add_values(&m, v, VECTOR);
    }
    mean[0] = m.sum;
    CHANNEL_SUMS(mean, 1);
    mean[0] /= count;
    deviations[0] = m.count * (m.mean - mean[0]);
    deviations[1] = squares_about(mean[0], m.count, m.mean, m.squares);
#endif
    CHANNEL_SUMS(deviations, 2 * CHANNELS);
    EACH_CHANNEL(k) {
        if (WORKER == 0 && p.is_there) {
            correct(&mean[k], &square[k], deviations + 2 * k, count);
            i64 at = GROUP_Y * ALL_CHANNELS(p) + OWN_CHANNEL(p, k);
            part_means[at] = mean[k];
            part_squares[at] = square[k];
        }
    }
#ifdef COUNTED
    if (GROUP == 0 && GROUP_Y == 0 && LANE == 0) batches[0] += 1;
#endif
}

#if !defined(GIVEN) && !defined(JOINED)
// Joins the means and squared deviations of `parts` parts, each of `length` words, to the statistics of the thread's channel. One thread
// of each channel keeps them.
#define JOIN_STATISTICS(keeps) \
    CHANNEL_JOINS(); \
    i64 channel = p.channel; \
    A count = (A)words * EACH, mean[1] = {0}, rstd[1], var, pivot[1], deviations[2] = {0, 0}; \
    pivots_of(pivot, x, p, words); \
    KEPT_STATISTICS(keeps, channel); \
    AWAIT_PREVIOUS(); \
    EACH_RUN(first) { \
        A of_part[RUN]; \
        EACH_OF_RUN(u) of_part[u] = OF_RUN(part_means, first, u); \
        EACH_OF_RUN(u) mean[0] += ELEMENTS(RUN_PART(first, u)) * of_part[u]; \
    } \
    CHANNEL_SUMS(mean, 1); \
    mean[0] /= count; \
    EACH_RUN(first) { \
        A of_part[RUN], squares[RUN]; \
        EACH_OF_RUN(u) { \
            of_part[u] = OF_RUN(part_means, first, u); \
            squares[u] = OF_RUN(part_squares, first, u); \
        } \
        EACH_OF_RUN(u) { \
            A own = ELEMENTS(RUN_PART(first, u)); \
            deviations[0] += own * (of_part[u] - mean[0]); \
            deviations[1] += squares_about(mean[0], own, of_part[u], own * squares[u]); \
        } \
    } \
    CHANNEL_SUMS(deviations, 2); \
    correct(mean, &var, deviations, count); \
    mean[0] += pivot[0]; \
    rstd[0] = (A)1 / sqrt_(var + eps); \
    if (!IS_IN_RANGE(var, eps)) { \
        idx inner = (idx)width * EACH; \
        Slice slice = {(idx)channel * inner, inner, (idx)channels * inner, (idx)words * EACH}; \
        Spread spread = spread_of(x, slice, 1); \
        mean[0] = spread.mean; \
        var = spread.deviation * spread.deviation; \
        rstd[0] = inverse_of(spread.deviation, eps); \
    } \
    if ((keeps) && WORKER == 0 && p.is_there) { \
        means[channel] = mean[0]; \
        rstds[channel] = rstd[0]; \
        KEEP_RUNNING(channel, mean[0], var * (count / (count - 1))); \
    }
// The elements of a part: none beyond the last one.
#define ELEMENTS(part) \
    ((A)((part) < (idx)parts - 1 ? (idx)length : (part) < (idx)parts ? (idx)words - (part) * (idx)length : 0) * EACH)
#ifdef MOMENTUM
#define WEIGHT_OF_BATCH momentum
#else
#define WEIGHT_OF_BATCH ((A)1 / (A)batches[0])
#endif
// Running statistics are read early: no launch that overlaps writes them.
#ifdef UPDATED
#define KEPT_STATISTICS(keeps, channel) \
    A kept_mean = (keeps) ? LOAD(R, running_mean, channel) : (A)0, kept_var = (keeps) ? LOAD(R, running_var, channel) : (A)0
#define KEEP_RUNNING(channel, mean, var) \
    A share = WEIGHT_OF_BATCH; \
    STORE(R, running_mean, channel, ((A)1 - share) * kept_mean + share * (mean)); \
    STORE(R, running_var, channel, ((A)1 - share) * kept_var + share * (var))
#else
#define KEPT_STATISTICS(keeps, channel)
#define KEEP_RUNNING(channel, mean, var)
#endif

// The statistics alone.
KERNEL(batch_norm_join)(GLOBAL const S *x, GLOBAL const A *part_means, GLOBAL const A *part_squares, GLOBAL SR *running_mean,
                        GLOBAL SR *running_var, GLOBAL const i64 *batches, GLOBAL A *means, GLOBAL A *rstds, i64 channels,
                        i64 words, i64 width, i64 length, i64 parts, A eps, A momentum) {
    LET_NEXT_START();
    Part p = part_of(GROUP, 0, channels, words, width, words);
    JOIN_STATISTICS(1)
}
#endif

// y = (x - mean) rstd weight + bias. Joins the means and squared deviations of the parts.
KERNEL(batch_norm)(GLOBAL const S *x, GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL const A *part_means,
                   GLOBAL const A *part_squares, GLOBAL SR *running_mean, GLOBAL SR *running_var, GLOBAL const i64 *batches,
                   GLOBAL const S *residual, GLOBAL S *y, GLOBAL A *means, GLOBAL A *rstds, i64 channels, i64 words, i64 width,
                   i64 length, A eps, A momentum) {
    i64 part = GROUPS_Y - 1 - GROUP_Y, parts = GROUPS_Y;
    Part p = part_of(GROUPS - 1 - GROUP, part, channels, words, width, length);
    A scale[CHANNELS], shift[CHANNELS];
    EACH_CHANNEL(k) {
        scale[k] = 1;
        shift[k] = 0;
#ifdef WEIGHT
        scale[k] = LOAD(P, weight, OWN_CHANNEL(p, k));
#endif
#ifdef BIAS
        shift[k] = LOAD(P, bias, OWN_CHANNEL(p, k));
#endif
    }
#ifdef GIVEN
    A mean[CHANNELS], rstd[CHANNELS];
    EACH_CHANNEL(k) {
        i64 channel = OWN_CHANNEL(p, k);
        mean[k] = LOAD(R, running_mean, channel);
        rstd[k] = (A)1 / sqrt_(LOAD(R, running_var, channel) + eps);
        if (part == 0 && WORKER == 0 && p.is_there) {
            means[channel] = mean[k];
            rstds[channel] = rstd[k];
        }
    }
#elif defined(JOINED)
    A mean[CHANNELS], rstd[CHANNELS];
    AWAIT_PREVIOUS();
    EACH_CHANNEL(k) {
        mean[k] = means[OWN_CHANNEL(p, k)];
        rstd[k] = rstds[OWN_CHANNEL(p, k)];
    }
#else
    JOIN_STATISTICS(part == 0)
#endif
    EACH_ROUND_BACK(p, round) {
        Read r[BATCH];
        read_round_once(r, x, p, round);
#ifdef RESIDUAL
        Read others[BATCH];
        read_round_once(others, residual, p, round);
#endif
        EACH_OF_BATCH(u) {
            A v[VECTOR];
            numbers_of(v, r[u], 1, 0);
            EACH_ELEMENT(j) {
                int k = CHANNEL_OF(j);
                v[j] = STANDARDISED(v[j], mean[k], rstd[k]) * scale[k] + shift[k];
            }
#ifdef RESIDUAL
            A other[VECTOR];
            numbers_of(other, others[u], 1, 0);
            EACH_ELEMENT(j) v[j] += other[j];
#endif
#ifdef RELU
            EACH_ELEMENT(j) v[j] = v[j] < 0 ? (A)0 : v[j];
#endif
            put_word(y, v, p, ROUND_WORD(p, round, u));
        }
    }
}

#else

// The gradient after a relu, from the gradient of its result.
#ifdef RELU
#define READ_RESULT(round) \
    Read ys[BATCH]; \
    read_round(ys, y, p, round)
#define PASS_RELU(dy, u) \
    A result[VECTOR]; \
    numbers_of(result, ys[u], 1, 0); \
    EACH_ELEMENT(j) dy[j] = result[j] <= 0 ? (A)0 : dy[j]
#define LET_RELU(p)
#elif defined(RELU_OF_X)
#define READ_RESULT(round)
// The forward kernel rounds its result to T.
#define PASS_RELU(dy, u) \
    EACH_ELEMENT(j) { \
        int k = CHANNEL_OF(j); \
        A result = STANDARDISED((A)LOAD(T, xs[u].each, j), mean[k], rstd[k]) * own_weight[k] + own_bias[k]; \
        dy[j] = result <= ROUNDED_TO_0(T) ? (A)0 : dy[j]; \
    }
#define LET_RELU(p) \
    A own_weight[CHANNELS], own_bias[CHANNELS]; \
    EACH_CHANNEL(k) { \
        own_weight[k] = OWN_WEIGHT(p, k); \
        own_bias[k] = OWN_BIAS(p, k); \
    }
#else
#define READ_RESULT(round)
#define PASS_RELU(dy, u)
#define LET_RELU(p)
#endif
#ifdef WEIGHT
#define OWN_WEIGHT(p, k) ((A)LOAD(P, weight, OWN_CHANNEL(p, k)))
#else
#define OWN_WEIGHT(p, k) ((A)1)
#endif
#ifdef BIAS
#define OWN_BIAS(p, k) ((A)LOAD(P, bias, OWN_CHANNEL(p, k)))
#else
#define OWN_BIAS(p, k) ((A)0)
#endif

// The sums over each part of dy xhat and of dy, [parts, channels]. xhat = (x - mean) rstd
KERNEL(batch_norm_backward_parts)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                                  GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL const S *y, GLOBAL const S *further,
                                  GLOBAL S *dresidual, GLOBAL A *slopes, GLOBAL A *sums, i64 channels, i64 words, i64 width,
                                  i64 length) {
    LET_NEXT_START();
    CHANNEL_JOINS();
    Part p = part_of(GROUP, GROUP_Y, channels, words, width, length);
    // The sums of dy xhat and of dy of each channel.
    A mean[CHANNELS], rstd[CHANNELS], all[2 * CHANNELS];
    EACH_CHANNEL(k) {
        mean[k] = means[OWN_CHANNEL(p, k)];
        rstd[k] = rstds[OWN_CHANNEL(p, k)];
        all[2 * k] = all[2 * k + 1] = 0;
    }
    LET_RELU(p);
    EACH_ROUND(p, round) {
        Read gs[BATCH], xs[BATCH];
        A of_round[2 * CHANNELS];
        EACH_CHANNEL(k) of_round[2 * k] = of_round[2 * k + 1] = 0;
        read_round(gs, g, p, round);
        read_round(xs, x, p, round);
        READ_RESULT(round);
#ifdef ADDED
        Read others[BATCH];
        read_round(others, further, p, round);
#endif
        EACH_OF_BATCH(u) {
            A dy[VECTOR], v[VECTOR];
            if (ROUND_WORD(p, round, u) >= p.end) continue;
            numbers_of(dy, gs[u], 1, 0);
#ifdef ADDED
            A more[VECTOR];
            numbers_of(more, others[u], 1, 0);
            EACH_ELEMENT(j) {
                S sum[1];
                STORE(T, sum, 0, dy[j] + more[j]);
                dy[j] = (A)LOAD(T, sum, 0);
            }
#endif
            PASS_RELU(dy, u);
#ifdef RESIDUAL
            put_word_again(dresidual, dy, p, ROUND_WORD(p, round, u));
#endif
            numbers_of(v, xs[u], 1, 0);
            EACH_ELEMENT(j) {
                int k = CHANNEL_OF(j);
                of_round[2 * k] += dy[j] * STANDARDISED(v[j], mean[k], rstd[k]);
                of_round[2 * k + 1] += dy[j];
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * CHANNELS; i++) all[i] += of_round[i];
    }
    CHANNEL_SUMS(all, 2 * CHANNELS);
    EACH_CHANNEL(k) {
        if (WORKER == 0 && p.is_there) {
            i64 at = GROUP_Y * ALL_CHANNELS(p) + OWN_CHANNEL(p, k);
            slopes[at] = all[2 * k];
            sums[at] = all[2 * k + 1];
        }
    }
}

// The sums of `parts` parts for the thread's channel.
#define JOIN_SUMS(all) \
    AWAIT_PREVIOUS(); \
    (all)[0] = (all)[1] = 0; \
    EACH_RUN(first) { \
        A of_part[2 * RUN]; \
        EACH_OF_RUN(u) { \
            of_part[2 * u] = OF_RUN(slopes, first, u); \
            of_part[2 * u + 1] = OF_RUN(sums, first, u); \
        } \
        EACH_OF_RUN(u) { \
            (all)[0] += of_part[2 * u]; \
            (all)[1] += of_part[2 * u + 1]; \
        } \
    } \
    CHANNEL_SUMS(all, 2)

// Joins the sums of the parts to those of all, [channels].
KERNEL(batch_norm_backward_join)(GLOBAL const A *slopes, GLOBAL const A *sums, GLOBAL A *all_slopes, GLOBAL A *all_sums,
                                 i64 channels, i64 words, i64 width, i64 length, i64 parts) {
    LET_NEXT_START();
    CHANNEL_JOINS();
    Part p = part_of(GROUP, 0, channels, words, width, words);
    A all[2];
    JOIN_SUMS(all);
    if (WORKER == 0 && p.is_there) {
        all_slopes[p.channel] = all[0];
        all_sums[p.channel] = all[1];
    }
}

// dx = weight rstd (dy - mean(dy) - xhat mean(dy xhat)), or weight rstd dy for GIVEN statistics; dweight = sum(dy xhat), dbias =
// sum(dy).
KERNEL(batch_norm_backward)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                            GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL const A *slopes, GLOBAL const A *sums,
                            GLOBAL const S *y, GLOBAL S *dresidual, GLOBAL S *dx, GLOBAL SP *dweight, GLOBAL SP *dbias,
                            i64 channels, i64 words, i64 width, i64 length, i64 parts) {
    i64 part = GROUPS_Y - 1 - GROUP_Y;
    Part p = part_of(GROUPS - 1 - GROUP, part, channels, words, width, length);
#if defined(DX) || (defined(RESIDUAL) && !defined(SUMS))
#define READS_WORDS
    A mean[CHANNELS], rstd[CHANNELS], scale[CHANNELS];
    LET_RELU(p);
    EACH_CHANNEL(k) {
        mean[k] = means[OWN_CHANNEL(p, k)];
        rstd[k] = rstds[OWN_CHANNEL(p, k)];
        scale[k] = rstd[k] * OWN_WEIGHT(p, k);
    }
#endif
#ifdef SUMS
    A all[2 * CHANNELS];
#ifdef JOINED
    AWAIT_PREVIOUS();
    EACH_CHANNEL(k) {
        all[2 * k] = slopes[OWN_CHANNEL(p, k)];
        all[2 * k + 1] = sums[OWN_CHANNEL(p, k)];
    }
#else
    CHANNEL_JOINS();
    JOIN_SUMS(all);
#endif
#ifdef PARAMETERS
    if (part == 0 && WORKER == 0 && p.is_there) {
        EACH_CHANNEL(k) {
#ifdef WEIGHT
            STORE(P, dweight, OWN_CHANNEL(p, k), all[2 * k]);
#endif
#ifdef BIAS
            STORE(P, dbias, OWN_CHANNEL(p, k), all[2 * k + 1]);
#endif
        }
    }
#endif
#endif
#ifdef READS_WORDS
#ifndef GIVEN
    A slope[CHANNELS], sum[CHANNELS];
    EACH_CHANNEL(k) {
        slope[k] = all[2 * k] / ((A)words * EACH);
        sum[k] = all[2 * k + 1] / ((A)words * EACH);
    }
#endif
    EACH_ROUND_BACK(p, round) {
        Read gs[BATCH], xs[BATCH];
        read_round_once(gs, g, p, round);
#if !defined(GIVEN) || defined(RELU_OF_X)
        read_round_once(xs, x, p, round);
#endif
        READ_RESULT(round);
        EACH_OF_BATCH(u) {
            A dy[VECTOR];
            numbers_of(dy, gs[u], 1, 0);
            PASS_RELU(dy, u);
#ifdef RESIDUAL
            put_word(dresidual, dy, p, ROUND_WORD(p, round, u));
#endif
#ifndef GIVEN
            A v[VECTOR];
            numbers_of(v, xs[u], 1, 0);
            EACH_ELEMENT(j) {
                int k = CHANNEL_OF(j);
                dy[j] = dy[j] - sum[k] - STANDARDISED(v[j], mean[k], rstd[k]) * slope[k];
            }
#endif
            EACH_ELEMENT(j) dy[j] *= scale[CHANNEL_OF(j)];
#ifdef DX
            put_word(dx, dy, p, ROUND_WORD(p, round, u));
#endif
        }
    }
#endif
}
#endif

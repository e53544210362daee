// Normalisation of channels over a batch: y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(var + eps), or that plus a residual, and of
// this the positive part, maybe up to 6.
//
// WEIGHT, BIAS: flags, there is a weight, a bias
// COUNTED: flag, the number of batches is incremented
// JOINED: flag, batch_norm_join has joined the partial statistics; otherwise the kernel that needs them joins them
// RELU: flag, y is max(y, 0)
// RELU6: flag, y is min(y, 6) after that
// RESIDUAL: flag, a tensor is added before the maximum
// GIVEN: flag, mean and variance are running statistics
// UPDATED: flag, running statistics are updated
// MOMENTUM: flag, a batch has the weight `momentum` in running statistics; otherwise all batches have the same weight
// the other defines in channels.h

#include "normalization/channels.h"
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
    if (CHANNELS > 1 || IS_SET(OF_WORDS)) {
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
        return;
    }
    idx inner = (idx)p.width * VECTOR, count = (idx)words * VECTOR;
    A apart = 0;
    for (int i = 0; i < 4; i++) {
        idx at = i < 3 ? count / 4 * (idx)i : count - 1;
        A v = LOAD(T, x, (at / inner * (idx)p.channels + (idx)p.channel) * inner + at % inner);
        if (i == 0) pivot[0] = v;
        apart = fabs_(v - pivot[0]) > apart ? fabs_(v - pivot[0]) : apart;
    }
    if (!(apart * 256 <= fabs_(pivot[0]) && fabs_(pivot[0]) < (A)1e30f)) pivot[0] = 0;
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
    if (CHANNELS > 1) {
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
    } else {
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
    }
    CHANNEL_SUMS(deviations, 2 * CHANNELS);
    EACH_CHANNEL(k) {
        if (WORKER == 0 && p.is_there) {
            correct(&mean[k], &square[k], deviations + 2 * k, count);
            i64 at = GROUP_Y * ALL_CHANNELS(p) + OWN_CHANNEL(p, k);
            part_means[at] = mean[k];
            part_squares[at] = square[k];
        }
    }
    if (IS_SET(COUNTED) && GROUP == 0 && GROUP_Y == 0 && LANE == 0) batches[0] += 1;
}

// Joins the means and squared deviations of `parts` parts, each of `length` words, to the statistics of the thread's channel. One thread
// of each channel writes them, if the group `keeps` them. Running statistics are read early: no launch that overlaps writes them.
#define JOIN_STATISTICS(keeps) \
    i64 channel = p.channel; \
    A count = (A)words * EACH, var, pivot[CHANNELS], deviations[2] = {0, 0}, kept_mean = 0, kept_var = 0; \
    mean[0] = 0; \
    pivots_of(pivot, x, p, words); \
    if (IS_SET(UPDATED)) { \
        kept_mean = (keeps) ? LOAD(R, running_mean, channel) : (A)0; \
        kept_var = (keeps) ? LOAD(R, running_var, channel) : (A)0; \
    } \
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
        if (IS_SET(UPDATED)) { \
            A share = IS_SET(MOMENTUM) ? momentum : (A)1 / (A)batches[0]; \
            STORE(R, running_mean, channel, ((A)1 - share) * kept_mean + share * mean[0]); \
            STORE(R, running_var, channel, ((A)1 - share) * kept_var + share * (var * (count / (count - 1)))); \
        } \
    }
// The elements of a part: none beyond the last one.
#define ELEMENTS(part) \
    ((A)((part) < (idx)parts - 1 ? (idx)length : (part) < (idx)parts ? (idx)words - (part) * (idx)length : 0) * EACH)

#if !defined(GIVEN) && !defined(JOINED)
// The statistics alone.
KERNEL(batch_norm_join)(GLOBAL const S *x, GLOBAL const A *part_means, GLOBAL const A *part_squares, GLOBAL SR *running_mean,
                        GLOBAL SR *running_var, GLOBAL const i64 *batches, GLOBAL A *means, GLOBAL A *rstds, i64 channels,
                        i64 words, i64 width, i64 length, i64 parts, A eps, A momentum) {
    LET_NEXT_START();
    CHANNEL_JOINS();
    Part p = part_of(GROUP, 0, channels, words, width, words);
    A mean[CHANNELS], rstd[CHANNELS];
    JOIN_STATISTICS(1)
}
#endif

// y = (x - mean) rstd weight + bias. Joins the means and squared deviations of the parts.
KERNEL(batch_norm)(GLOBAL const S *x, GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL const A *part_means,
                   GLOBAL const A *part_squares, GLOBAL SR *running_mean, GLOBAL SR *running_var, GLOBAL const i64 *batches,
                   GLOBAL const S *residual, GLOBAL S *y, GLOBAL A *means, GLOBAL A *rstds, i64 channels, i64 words, i64 width,
                   i64 length, A eps, A momentum) {
    CHANNEL_JOINS();
    i64 part = GROUPS_Y - 1 - GROUP_Y, parts = GROUPS_Y;
    Part p = part_of(GROUPS - 1 - GROUP, part, channels, words, width, length);
    A scale[CHANNELS], shift[CHANNELS], mean[CHANNELS], rstd[CHANNELS];
    EACH_CHANNEL(k) {
        scale[k] = 1;
        shift[k] = 0;
        if (IS_SET(WEIGHT)) scale[k] = LOAD(P, weight, OWN_CHANNEL(p, k));
        if (IS_SET(BIAS)) shift[k] = LOAD(P, bias, OWN_CHANNEL(p, k));
    }
    if (IS_SET(GIVEN)) {
        EACH_CHANNEL(k) {
            i64 channel = OWN_CHANNEL(p, k);
            mean[k] = LOAD(R, running_mean, channel);
            rstd[k] = (A)1 / sqrt_(LOAD(R, running_var, channel) + eps);
            if (part == 0 && WORKER == 0 && p.is_there) {
                means[channel] = mean[k];
                rstds[channel] = rstd[k];
            }
        }
    } else if (IS_SET(JOINED)) {
        AWAIT_PREVIOUS();
        EACH_CHANNEL(k) {
            mean[k] = means[OWN_CHANNEL(p, k)];
            rstd[k] = rstds[OWN_CHANNEL(p, k)];
        }
    } else {
        JOIN_STATISTICS(part == 0)
    }
    EACH_ROUND_BACK(p, round) {
        Read r[BATCH], others[BATCH];
        read_round_once(r, x, p, round);
        if (IS_SET(RESIDUAL)) read_round_once(others, residual, p, round);
        EACH_OF_BATCH(u) {
            A v[VECTOR], other[VECTOR];
            numbers_of(v, r[u], 1, 0);
            EACH_ELEMENT(j) {
                int k = CHANNEL_OF(j);
                v[j] = STANDARDISED(v[j], mean[k], rstd[k]) * scale[k] + shift[k];
            }
            if (IS_SET(RESIDUAL)) {
                numbers_of(other, others[u], 1, 0);
                EACH_ELEMENT(j) v[j] += other[j];
            }
            if (IS_SET(RELU)) EACH_ELEMENT(j) v[j] = v[j] < 0 ? (A)0 : v[j];
            if (IS_SET(RELU6)) EACH_ELEMENT(j) v[j] = v[j] > 6 ? (A)6 : v[j];
            put_word(y, v, p, ROUND_WORD(p, round, u));
        }
    }
}

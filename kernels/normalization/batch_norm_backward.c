// Gradients of the normalisation of channels over a batch, with xhat = (x - mean) rstd: dx = weight rstd (dy - mean(dy) - xhat mean(dy
// xhat)), dweight = sum(dy xhat), dbias = sum(dy). The forward pass is in batch_norm.c.
//
// WEIGHT, BIAS: flags, there is a weight, a bias
// JOINED: flag, batch_norm_backward_join has joined the sums of parts; otherwise the kernel that needs them joins them
// RELU: flag, dy is the gradient of max(y, 0), of the given y
// RELU_OF_X: flag, the same, and y is computed again from x
// RELU6: flag, with one of both: of min(max(y, 0), 6)
// RESIDUAL: flag, the gradient of a residual is written
// ADDED: flag, the sums are of dy and a further term of it; needs RESIDUAL
// GIVEN: flag, mean and variance are constants
// SUMS: flag, there are sums of `parts` parts
// DX, PARAMETERS: flags, the gradients that are wanted
// the other defines in channels.h

#include "normalization/channels.h"

// The weight and the bias of each channel of the thread's word, which are 1 and 0 if there are none.
FUNCTION A own_weight(GLOBAL const SP *weight, Part p, int k) {
    return IS_SET(WEIGHT) ? (A)LOAD(P, weight, OWN_CHANNEL(p, k)) : (A)1;
}

FUNCTION A own_bias(GLOBAL const SP *bias, Part p, int k) {
    return IS_SET(BIAS) ? (A)LOAD(P, bias, OWN_CHANNEL(p, k)) : (A)0;
}

// The same for a result that is computed again from x.
FUNCTION void affine_of(A *own_weights, A *own_biases, GLOBAL const SP *weight, GLOBAL const SP *bias, Part p) {
    if (!IS_SET(RELU_OF_X)) return;
    EACH_CHANNEL(k) {
        own_weights[k] = own_weight(weight, p, k);
        own_biases[k] = own_bias(bias, p, k);
    }
}

// dy becomes the gradient before a relu, whose result is a word y, or is computed from a word x.
FUNCTION void pass_relu(A *dy, const Read *y, const Read *x, const A *mean, const A *rstd, const A *weight, const A *bias) {
    if (IS_SET(RELU)) {
        A result[VECTOR];
        numbers_of(result, *y, 1, 0);
        EACH_ELEMENT(j) dy[j] = result[j] <= 0 || (IS_SET(RELU6) && result[j] >= 6) ? (A)0 : dy[j];
    }
    if (IS_SET(RELU_OF_X)) {
        // The forward kernel rounds its result to T.
        EACH_ELEMENT(j) {
            int k = CHANNEL_OF(j);
            A result = STANDARDISED((A)LOAD(T, x->each, j), mean[k], rstd[k]) * weight[k] + bias[k];
            dy[j] = result <= ROUNDED_TO_0(T) || (IS_SET(RELU6) && result >= 6) ? (A)0 : dy[j];
        }
    }
}

// The sums over each part of dy xhat and of dy, [parts, channels]. xhat = (x - mean) rstd
KERNEL(batch_norm_backward_parts)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                                  GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL const S *y, GLOBAL const S *further,
                                  GLOBAL S *dresidual, GLOBAL A *slopes, GLOBAL A *sums, i64 channels, i64 words, i64 width,
                                  i64 length) {
    LET_NEXT_START();
    CHANNEL_JOINS();
    Part p = part_of(GROUP, GROUP_Y, channels, words, width, length);
    // The sums of dy xhat and of dy of each channel.
    A mean[CHANNELS], rstd[CHANNELS], all[2 * CHANNELS], own_weights[CHANNELS], own_biases[CHANNELS];
    EACH_CHANNEL(k) {
        mean[k] = means[OWN_CHANNEL(p, k)];
        rstd[k] = rstds[OWN_CHANNEL(p, k)];
        all[2 * k] = all[2 * k + 1] = 0;
    }
    affine_of(own_weights, own_biases, weight, bias, p);
    EACH_ROUND(p, round) {
        Read gs[BATCH], xs[BATCH], ys[BATCH], others[BATCH];
        A of_round[2 * CHANNELS];
        EACH_CHANNEL(k) of_round[2 * k] = of_round[2 * k + 1] = 0;
        read_round(gs, g, p, round);
        read_round(xs, x, p, round);
        if (IS_SET(RELU)) read_round(ys, y, p, round);
        if (IS_SET(ADDED)) read_round(others, further, p, round);
        EACH_OF_BATCH(u) {
            A dy[VECTOR], v[VECTOR], more[VECTOR];
            if (ROUND_WORD(p, round, u) >= p.end) continue;
            numbers_of(dy, gs[u], 1, 0);
            if (IS_SET(ADDED)) {
                numbers_of(more, others[u], 1, 0);
                EACH_ELEMENT(j) {
                    S sum[1];
                    STORE(T, sum, 0, dy[j] + more[j]);
                    dy[j] = (A)LOAD(T, sum, 0);
                }
            }
            pass_relu(dy, &ys[u], &xs[u], mean, rstd, own_weights, own_biases);
            if (IS_SET(RESIDUAL)) put_word_again(dresidual, dy, p, ROUND_WORD(p, round, u));
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

#define READS_WORDS (IS_SET(DX) || (IS_SET(RESIDUAL) && !IS_SET(SUMS)))

// dx = weight rstd (dy - mean(dy) - xhat mean(dy xhat)), or weight rstd dy for GIVEN statistics; dweight = sum(dy xhat), dbias =
// sum(dy).
KERNEL(batch_norm_backward)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                            GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL const A *slopes, GLOBAL const A *sums,
                            GLOBAL const S *y, GLOBAL S *dresidual, GLOBAL S *dx, GLOBAL SP *dweight, GLOBAL SP *dbias,
                            i64 channels, i64 words, i64 width, i64 length, i64 parts) {
    CHANNEL_JOINS();
    i64 part = GROUPS_Y - 1 - GROUP_Y;
    Part p = part_of(GROUPS - 1 - GROUP, part, channels, words, width, length);
    A mean[CHANNELS], rstd[CHANNELS], scale[CHANNELS], own_weights[CHANNELS], own_biases[CHANNELS];
    if (READS_WORDS) {
        affine_of(own_weights, own_biases, weight, bias, p);
        EACH_CHANNEL(k) {
            mean[k] = means[OWN_CHANNEL(p, k)];
            rstd[k] = rstds[OWN_CHANNEL(p, k)];
            scale[k] = rstd[k] * own_weight(weight, p, k);
        }
    }
    A all[2 * CHANNELS];
    if (IS_SET(SUMS)) {
        if (IS_SET(JOINED)) {
            AWAIT_PREVIOUS();
            EACH_CHANNEL(k) {
                all[2 * k] = slopes[OWN_CHANNEL(p, k)];
                all[2 * k + 1] = sums[OWN_CHANNEL(p, k)];
            }
        } else {
            JOIN_SUMS(all);
        }
        if (IS_SET(PARAMETERS) && part == 0 && WORKER == 0 && p.is_there) {
            EACH_CHANNEL(k) {
                if (IS_SET(WEIGHT)) STORE(P, dweight, OWN_CHANNEL(p, k), all[2 * k]);
                if (IS_SET(BIAS)) STORE(P, dbias, OWN_CHANNEL(p, k), all[2 * k + 1]);
            }
        }
    }
    if (!READS_WORDS) return;
    A slope[CHANNELS], sum[CHANNELS];
    if (!IS_SET(GIVEN)) {
        EACH_CHANNEL(k) {
            slope[k] = all[2 * k] / ((A)words * EACH);
            sum[k] = all[2 * k + 1] / ((A)words * EACH);
        }
    }
    EACH_ROUND_BACK(p, round) {
        Read gs[BATCH], xs[BATCH], ys[BATCH];
        read_round_once(gs, g, p, round);
        if (!IS_SET(GIVEN) || IS_SET(RELU_OF_X)) read_round_once(xs, x, p, round);
        if (IS_SET(RELU)) read_round(ys, y, p, round);
        EACH_OF_BATCH(u) {
            A dy[VECTOR], v[VECTOR];
            numbers_of(dy, gs[u], 1, 0);
            pass_relu(dy, &ys[u], &xs[u], mean, rstd, own_weights, own_biases);
            if (IS_SET(RESIDUAL)) put_word(dresidual, dy, p, ROUND_WORD(p, round, u));
            if (!IS_SET(GIVEN)) {
                numbers_of(v, xs[u], 1, 0);
                EACH_ELEMENT(j) {
                    int k = CHANNEL_OF(j);
                    dy[j] = dy[j] - sum[k] - STANDARDISED(v[j], mean[k], rstd[k]) * slope[k];
                }
            }
            EACH_ELEMENT(j) dy[j] *= scale[CHANNEL_OF(j)];
            if (IS_SET(DX)) put_word(dx, dy, p, ROUND_WORD(p, round, u));
        }
    }
}

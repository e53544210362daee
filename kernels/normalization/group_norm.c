// Gradients of the normalisation of groups of channels. The forward pass is in norm.c.
//
// x has `slices` groups of `channels` channels of `width` words. A group of threads takes a slice. Each team takes one of its
// channels after the other, and reads PER words per thread at once.
//
// THREADS: 1 .. 1024, threads of a group
// TEAM: power of 2, threads of a channel
// T: f16, bf16, f32 or f64, dtype of x
// P: dtype of the weight
// ACC: f32 or f64, dtype of the arithmetic
// VECTOR: 1 .. 16, elements of a word
// WORD: u16 .. u32x4, type of a word
// PER: 1.., words of a thread that are read at once
// BATCH: 1
// KEPT: flag, there is a team for each channel, and PER words per thread are a whole channel, which stays in registers
// WEIGHT, BIAS: flags, there is a weight, a bias
// DX: flag, the gradient of x is wanted

#include "flags.h"

typedef STORAGE(P) SP;

#define FIRST_CHANNEL ((i64)(LANE / TEAM))
#define WORD_OF(at, u) ((at) + MEMBER + (u) * TEAM)
#define EACH_WORD(u) _Pragma("unroll") for (int u = 0; u < PER; u++)

// A thread's words. With KEPT there is one turn. Otherwise teams take the same number of turns.
#define EACH_CHANNELS(base) for (i64 base = 0; base < (IS_SET(KEPT) ? 1 : channels); base += TEAMS)
#define EACH_CHANNELS_BACK(base) for (i64 base = IS_SET(KEPT) ? 0 : (channels - 1) / TEAMS * TEAMS; base >= 0; base -= TEAMS)
#define EACH_WORDS(at) for (idx at = 0; at < (IS_SET(KEPT) ? 1 : (idx)width); at += PER * TEAM)
#define EACH_WORDS_BACK(at) \
    for (idx at = IS_SET(KEPT) ? 0 : ((idx)width - 1) / (PER * TEAM) * (PER * TEAM); at >= 0; at -= PER * TEAM)

// A word outside of the channel is replaced by the channel's first word.
FUNCTION void read_words(Read *r, GLOBAL const S *x, i64 first, idx at, idx width) {
    EACH_WORD(u) r[u].all = ((GLOBAL const WORD *)x)[first + (WORD_OF(at, u) < width ? WORD_OF(at, u) : 0)];
}

// The sums of dy xhat and of dy over each channel of each slice, [slices, channels], where xhat = (x - mean) rstd; and dx = rstd (h
// - mean(h) - xhat mean(h xhat)), h = dy weight, with means over the slice.
KERNEL(group_norm_backward)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                            GLOBAL const SP *weight, GLOBAL S *dx, GLOBAL A *slopes, GLOBAL A *sums, i64 slices, i64 groups,
                            i64 channels, i64 width) {
    JOINS(2);
    SHARED(A, of_teams, 2 * TEAMS);
    for (i64 slice = GROUP; slice < slices; slice += GROUPS) {
        A mean = means[slice], rstd = rstds[slice], all[2];
        i64 first_weight = slice % groups * channels;
        Read gs[PER], xs[PER];
        all[0] = all[1] = 0;
        EACH_CHANNELS(base) {
            // A team without a channel reads the last channel.
            i64 c = base + FIRST_CHANNEL < channels ? base + FIRST_CHANNEL : channels - 1;
            i64 first = (slice * channels + c) * width;
            int is_there = base + FIRST_CHANNEL < channels;
            A own[2];
            own[0] = own[1] = 0;
            EACH_WORDS(at) {
                A part[2];
                part[0] = part[1] = 0;
                read_words(gs, g, first, at, (idx)width);
                read_words(xs, x, first, at, (idx)width);
                EACH_WORD(u) {
                    A dy[VECTOR], v[VECTOR];
                    numbers_of(dy, gs[u], WORD_OF(at, u) < (idx)width, 0);
                    numbers_of(v, xs[u], 1, 0);
                    EACH_ELEMENT(j) {
                        part[0] += dy[j] * STANDARDISED(v[j], mean, rstd);
                        part[1] += dy[j];
                    }
                }
                own[0] += part[0];
                own[1] += part[1];
            }
            team_join(own, 2, SIDE(2), 0);
            if (MEMBER == 0 && is_there) {
                slopes[slice * channels + c] = own[0];
                sums[slice * channels + c] = own[1];
            }
            A scale = 1;
            if (IS_SET(WEIGHT)) scale = LOAD(P, weight, first_weight + c);
            if (is_there) {
                all[0] += scale * own[0];
                all[1] += scale * own[1];
            }
        }
        if (!IS_SET(DX)) continue;
        BARRIER();
        if (MEMBER == 0) {
            of_teams[LANE / TEAM] = all[0];
            of_teams[TEAMS + LANE / TEAM] = all[1];
        }
        BARRIER();
        all[0] = all[1] = 0;
        for (int i = 0; i < TEAMS; i++) {
            all[0] += of_teams[i];
            all[1] += of_teams[TEAMS + i];
        }
        A count = (A)(channels * width) * VECTOR, slope = all[0] / count, shift = all[1] / count;
        // The gradient of a single element is 0; the products below would leave rounding errors.
        A factor = count > 1 ? rstd : (A)0;
        EACH_CHANNELS_BACK(base) {
            i64 c = base + FIRST_CHANNEL;
            if (c >= channels) continue;
            i64 first = (slice * channels + c) * width;
            A scale = 1;
            if (IS_SET(WEIGHT)) scale = LOAD(P, weight, first_weight + c);
            EACH_WORDS_BACK(at) {
                if (!IS_SET(KEPT)) {
                    read_words(gs, g, first, at, (idx)width);
                    read_words(xs, x, first, at, (idx)width);
                }
                EACH_WORD(u) {
                    Read r;
                    A dy[VECTOR], v[VECTOR];
                    numbers_of(dy, gs[u], 1, 0);
                    numbers_of(v, xs[u], 1, 0);
                    EACH_ELEMENT(j) {
                        A d = factor * (dy[j] * scale - shift - STANDARDISED(v[j], mean, rstd) * slope);
                        STORE(T, r.each, j, d);
                    }
                    if (WORD_OF(at, u) < (idx)width) store_once((GLOBAL WORD *)dx + first + WORD_OF(at, u), r.all);
                }
            }
        }
    }
}

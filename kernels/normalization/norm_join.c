// Sums over the rows of partial results, [rows, columns]: the gradients of parameters of norms, or statistics of instances.
//
// THREADS: power of 2, 32 .. 1024, threads of a group
// P: dtype of the results
// ACC: f32 or f64, dtype of the arithmetic
// WEIGHT, BIAS: flags, the gradients that are wanted
// UPDATED: flag, running statistics are updated from the statistics of the rows
// MOMENTUM: flag, with UPDATED, a batch has the weight `momentum`; otherwise all batches have the same weight

#include "flags.h"

typedef STORAGE(P) SP;

// Columns of a group.
#define COLUMNS 32
#define LINES (THREADS / COLUMNS)
#define LINE (LANE / COLUMNS)

// The first line of threads gets the sums of the columns of [LINES, COLUMNS].
LOCAL_FUNCTION A sum_of_lines(A own, LOCAL A *shared) {
    shared[LANE] = own;
    for (int below = LINES / 2; below > 0; below /= 2) {
        BARRIER();
        if (LINE < below) shared[LANE] += shared[LANE + below * COLUMNS];
    }
    return shared[LANE];
}

#ifdef UPDATED
// Updates running means (GROUP_Y 0) and variances (GROUP_Y 1) with the means over the batch of the statistics of instances, [batch,
// channels]. `unbiased` converts a biased variance to an unbiased one.
KERNEL(norm_update)(GLOBAL const A *means, GLOBAL const A *rstds, GLOBAL SP *running_mean, GLOBAL SP *running_var,
                    GLOBAL const i64 *batches, i64 batch, i64 channels, A eps, A momentum, A unbiased) {
    SHARED(A, shared, THREADS);
    AWAIT_PREVIOUS();
    i64 c = GROUP * COLUMNS + LANE % COLUMNS;
    GLOBAL const A *from = GROUP_Y == 0 ? means : rstds;
    A sum = 0;
    if (c < channels) {
#pragma unroll 8
        for (i64 i = LINE; i < batch; i += LINES) {
            A v = from[i * channels + c], var = (A)1 / (v * v) - eps;
            // In rstd, a variance that is small relative to eps is lost to rounding.
            sum += GROUP_Y == 0 ? v : var < 0 ? (A)0 : var * unbiased;
        }
    }
    sum = sum_of_lines(sum, shared);
    if (LINE > 0 || c >= channels) return;
    if (!IS_SET(MOMENTUM)) momentum = (A)1 / (A)batches[0];
    GLOBAL SP *running = GROUP_Y == 0 ? running_mean : running_var;
    STORE(P, running, c, ((A)1 - momentum) * LOAD(P, running, c) + momentum * (sum / (A)batch));
}
#else
// Joins the partial gradients of the weight (GROUP_Y 0) and of the bias (GROUP_Y 1).
KERNEL(norm_join)(GLOBAL const A *weights, GLOBAL const A *biases, GLOBAL SP *dweight, GLOBAL SP *dbias, i64 parts,
                  i64 extent) {
    SHARED(A, shared, THREADS);
    i64 c = GROUP * COLUMNS + LANE % COLUMNS;
    GLOBAL const A *from = GROUP_Y == 0 ? weights : biases;
    A sum = 0;
    if (c < extent) {
#pragma unroll 8
        for (i64 i = LINE; i < parts; i += LINES) sum += from[i * extent + c];
    }
    sum = sum_of_lines(sum, shared);
    if (LINE > 0 || c >= extent) return;
    if (IS_SET(WEIGHT) && GROUP_Y == 0) STORE(P, dweight, c, sum);
    if (IS_SET(BIAS) && GROUP_Y == 1) STORE(P, dbias, c, sum);
}
#endif

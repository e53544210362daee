// Normalisation of rows: y = activation((x - mean) rstd weight + bias), rstd = 1 / sqrt(mean((x - mean)^2) + eps). Without CENTERED the
// mean is 0. A team takes a row.
//
// T: f16, bf16, f32 or f64, dtype of the rows
// P: dtype of weight and bias
// ACC: f32 or f64, dtype of the arithmetic
// CENTERED: flag, the mean is subtracted
// WEIGHT, BIAS: flags, there is a weight, a bias
// ACTIVATION: name of a function of one operand, which precedes this file and is applied to the result
// RESIDUAL: flag, a residual is added to x (row_residual.h)
// LOW, LOW_WORD: with RESIDUAL, a smaller dtype of x and y (row_low.h)
// INDEX: dtype of an index that selects rows of a table (row_indexed.h); needs WHOLE
// PIECE: u16 .. u32x4, type of the words in which weight and bias are read; needs WHOLE
// CHANNELS: flag, rows are `groups` groups of channels with `inner` elements each; a channel has one weight and bias
// ALIKE: flag, with CHANNELS, the elements of a word belong to the same channel
// UPDATED: flag, running statistics are updated from the statistics of the rows, by norm_update
// WIDE: flag, positions have 64 bits
// the other defines of rows in common.h

#include "flags.h"
#include "normalization/rows.h"
#include "normalization/moments.h"
#include "activate.h"
#ifdef RESIDUAL
#include "normalization/row_residual.h"
#else
#include "normalization/row_plain.h"
#endif

// Sums over rows. The first, with CENTERED, is the sum of differences from a mean.
#define FIRST_SUM (IS_SET(CENTERED) ? 0 : 1)
#define SUMS (2 - FIRST_SUM)

// What the results of a row are computed with.
typedef struct {
    A mean, rstd;
    GLOBAL const SP *weight, *bias;
    idx inner;
} Norm;

FUNCTION void put_normalised(GLOBAL SL *y, A *v, Norm n, Row at, idx w) {
    A p[VECTOR];
    EACH_ELEMENT(j) v[j] = STANDARDISED(v[j], n.mean, n.rstd);
    if (IS_SET(WEIGHT)) {
        parameters_of(p, n.weight, at, w, n.inner);
        EACH_ELEMENT(j) v[j] *= p[j];
    }
    if (IS_SET(BIAS)) {
        parameters_of(p, n.bias, at, w, n.inner);
        EACH_ELEMENT(j) v[j] += p[j];
    }
    EACH_ELEMENT(j) v[j] = activate(v[j]);
    put_low(y, v, at, w);
}

FUNCTION void put_normalised_edge(GLOBAL SL *y, A v, Norm n, Row at) {
    if (at.edge < 0) return;
    v = STANDARDISED(v, n.mean, n.rstd);
    if (IS_SET(WEIGHT)) v *= LOAD(P, n.weight, parameter_of(at.edge, n.inner));
    if (IS_SET(BIAS)) v += LOAD(P, n.bias, parameter_of(at.edge, n.inner));
    put_low_edge(y, activate(v), at);
}

// Adds to the sums of differences from the mean and of their squares.
FUNCTION void add_deviations(A *sums, const A *v, A mean, int is_inside) {
    A part = 0, squares = 0;
    EACH_ELEMENT(j) {
        A d = v[j] - mean;
        part += d;
        squares += d * d;
    }
    sums[0] = is_inside ? sums[0] + part : sums[0];
    sums[1] = is_inside ? sums[1] + squares : sums[1];
}

KERNEL(norm)(GLOBAL const SL *x, GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL SL *y, GLOBAL A *means,
             GLOBAL A *rstds, ROW_ARGUMENTS i64 rows, i64 extent, i64 groups, i64 inner, A eps, GLOBAL i64 *status) {
    if (IS_SET(UPDATED)) LET_NEXT_START();
    JOINS(SUMS);
    HELD_MEMORY(held);
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        // The channels of a row have parameters of their own.
        i64 first = IS_SET(CHANNELS) ? at.row % groups * (extent / inner) : 0;
        Norm n = {0, 0, weight + first, bias + first, (idx)inner};
        Source from = SOURCE_OF_ROW(x, at, row < rows);
        A v[PER][VECTOR], mean = 0, sums[2];
        sums[0] = sums[1] = 0;
        // Come first, because the kept words take registers.
        Moments others = NO_MOMENTS;
        if (IS_SET(OTHERS)) EACH_BATCH(at, b) {
            Read r[BATCH];
            A o[VECTOR];
            first_batch(r, from, at, b);
            hold_batch(held, r, b);
            EACH_OF_BATCH(u) {
                numbers_of(o, r[u], BATCH_WORD(b, u) < at.words, 0);
                if (!IS_SET(CENTERED)) add_deviations(sums, o, 0, 1);
                else if (BATCH_WORD(b, u) < at.words) add_values(&others, o, VECTOR);
            }
        }
        mean = others.sum;
        first_kept(v, from, at);
        A edge = first_edge(from, at);
        GLOBAL const S *again = row_again(from);
        if (IS_SET(CENTERED)) {
            EACH_KEPT(turn) EACH_ELEMENT(j) mean += v[turn][j];
            mean = team_join_one(mean + edge, SIDE(SUMS), JOIN_TO_SUM) / (A)extent;
        }
        EACH_KEPT(turn) add_deviations(sums, v[turn], mean, IS_KEPT(at, turn));
        if (at.edge >= 0) {
            sums[0] += edge - mean;
            sums[1] += (edge - mean) * (edge - mean);
        }
        if (IS_SET(OTHERS)) {
            sums[0] += others.count * (others.mean - mean);
            sums[1] += squares_about(mean, others.count, others.mean, others.squares);
        }
        team_join(sums + FIRST_SUM, SUMS, SIDE(SUMS), JOIN_TO_SUM);
        A square = sums[1] / (A)extent;
        if (IS_SET(CENTERED)) {
            // The smaller the differences, the more exact is the mean.
            A shift = sums[0] / (A)extent;
            mean += shift;
            square -= shift * shift;
            square = square < 0 ? (A)0 : square;
        }
        n.mean = mean;
        n.rstd = (A)1 / sqrt_(square + eps);
        if (!IS_IN_RANGE(square, eps)) {
            Slice slice = {at.first, (idx)extent, 0, (idx)extent};
            Spread spread = spread_of(again, slice, IS_SET(CENTERED));
            n.mean = spread.mean;
            n.rstd = inverse_of(spread.deviation, eps);
        }
        n.rstd = CHECKED(n.rstd, at);
        if (row < rows) {
            if (MEMBER == 0) {
                means[row] = n.mean;
                rstds[row] = n.rstd;
            }
            put_normalised_edge(y, edge, n, at);
            EACH_KEPT(turn) put_normalised(y, v[turn], n, at, KEPT_WORD(turn));
        }
        if (IS_SET(OTHERS)) EACH_BATCH_BACK(at, b) {
            Read r[BATCH];
            A o[VECTOR];
            read_batch_again(r, held, again, at, b);
            EACH_OF_BATCH(u) {
                numbers_of(o, r[u], 1, 0);
                put_normalised(y, o, n, at, BATCH_WORD(b, u));
            }
        }
    }
}

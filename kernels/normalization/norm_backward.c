// Gradients of the normalisation of rows: dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = dy weight and xhat = (x - mean) rstd,
// and a group's part of dweight = sum(dy xhat) and dbias = sum(dy). Without CENTERED mean(h) is left out. With an activation, dy is
// the gradient of its argument. The forward pass is in norm.c.
//
// T: f16, bf16, f32 or f64, dtype of the rows
// P: dtype of weight and bias
// ACC: f32 or f64, dtype of the arithmetic
// CENTERED: flag, the mean is subtracted
// WEIGHT, BIAS: flags, there is a weight, a bias
// SLOPE: name of a function of dy and of the activation's argument, which precedes this file: the argument's gradient
// OF_RESULT: flag, with SLOPE, the function reads the activation's result, of which only the sign matters
// ADDED: flag, without SLOPE, a further gradient is added to dx
// DX, PARAMETERS: flags, the gradients that are wanted
// LOW, LOW_WORD: a smaller dtype of dy, and of a copy of dx (row_low.h)
// INDEX: dtype of an index that selects rows of a table (row_indexed.h)
// PIECE: u16 .. u32x4, type of the words in which weight and bias are read
// WIDE: flag, positions have 64 bits
// the other defines of rows in common.h, with WHOLE

#include "flags.h"
#include "normalization/rows.h"

#define MOST_COLUMNS (TEAM * PER * VECTOR)

// The argument that only some programs have. An operand that is absent has the address of another one, and is not read.
#ifdef SLOPE
#define HAS_SLOPE 1
#define FURTHER GLOBAL const SP *bias,
#define GIVEN_BIAS bias
#define GIVEN_ADDED x
#else
#define HAS_SLOPE 0
#define SLOPE(dy, argument, slope) (*(slope) = (dy))
#define GIVEN_BIAS weight
#ifdef ADDED
#define FURTHER GLOBAL const S *added,
#define GIVEN_ADDED added
#else
#define FURTHER
#define GIVEN_ADDED x
#endif
#endif

// The weight and the bias of a word, which are 1 and 0 if there are none.
FUNCTION void weights_of(A *v, GLOBAL const SP *weight, Row at, idx w) {
    if (IS_SET(WEIGHT)) parameters_of(v, weight, at, w, 1);
    else EACH_ELEMENT(j) v[j] = 1;
}

FUNCTION void biases_of(A *v, GLOBAL const SP *bias, Row at, idx w) {
    if (IS_SET(BIAS)) parameters_of(v, bias, at, w, 1);
    else EACH_ELEMENT(j) v[j] = 0;
}

// dy becomes the gradient of the activation's argument, xhat weight + bias.
FUNCTION void argument_slopes(A *dy, const A *x, const A *weight, const A *bias, A mean, A rstd, int is_inside) {
    EACH_ELEMENT(j) {
        A argument = STANDARDISED(x[j], mean, rstd) * weight[j] + bias[j], slope;
        if (IS_SET(OF_RESULT)) {
            // As the forward kernel rounds its result.
            S result[1];
            STORE(T, result, 0, argument);
            argument = (A)LOAD(T, result, 0);
        }
        SLOPE(dy[j], argument, &slope);
        dy[j] = is_inside ? slope : (A)0;
    }
}

// Adds a word's contribution to the two sums of a row. x becomes xhat.
FUNCTION void slopes_of(A *sums, const A *dy, A *x, const A *weight, A mean, A rstd) {
    EACH_ELEMENT(j) {
        A h = dy[j] * weight[j];
        x[j] = STANDARDISED(x[j], mean, rstd);
        sums[0] += h * x[j];
        sums[1] += h;
    }
}

// The means of h xhat and of h over the row.
LOCAL_FUNCTION void joined_sums(A *sums, LOCAL A *shared, i64 extent) {
    team_join(sums, 2, shared, JOIN_TO_SUM);
    sums[0] /= (A)extent;
    sums[1] = IS_SET(CENTERED) ? sums[1] / (A)extent : (A)0;
}

FUNCTION void slopes_to(A *d, const A *dy, const A *xhat, const A *weight, const A *sums, A rstd) {
    EACH_ELEMENT(j) d[j] = rstd * (dy[j] * weight[j] - sums[1] - xhat[j] * sums[0]);
}

// dy, x and the weight of a word beyond those that are kept.
FUNCTION void numbers_of_other(A *dy, A *n, A *weight, Low g, Read x, GLOBAL const SP *weights, GLOBAL const SP *biases, Row at, idx w,
                               A mean, A rstd) {
    low_numbers_of(dy, g, w < at.words);
    numbers_of(n, x, w < at.words, 0);
    weights_of(weight, weights, at, w);
    if (HAS_SLOPE) {
        A bias[VECTOR];
        biases_of(bias, biases, at, w);
        argument_slopes(dy, n, weight, bias, mean, rstd, w < at.words);
    }
}

// Both gradients in one pass over the rows. A thread has the same columns of all of its rows. It sums the gradients of their
// parameters in registers or, if there are many columns, in the group's row of `weights` and `biases`.
KERNEL(norm_backward)(GLOBAL const SL *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                      GLOBAL const SP *weight, GLOBAL S *dx, GLOBAL A *weights, GLOBAL A *biases, INDEX_ARGUMENTS FURTHER LOW_DX
                      i64 rows, i64 extent) {
    JOINS(2);
    SHARED(A, columns, TEAMS > 1 && IS_SET(PARAMETERS) ? 2 * MOST_COLUMNS : 1);
    A ws[PER][VECTOR], dw[PER][VECTOR], db[PER][VECTOR], bs[PER][VECTOR];
    Low gs[PER];
    Read xs[PER];
    Row at = row_of(GROUP * TEAMS + LANE / TEAM, rows, extent);
    A mean = means[at.row], rstd = rstds[at.row];
    EACH_KEPT(turn) {
        weights_of(ws[turn], weight, at, KEPT_WORD(turn));
        EACH_ELEMENT(j) dw[turn][j] = db[turn][j] = 0;
    }
    if (HAS_SLOPE) EACH_KEPT(turn) biases_of(bs[turn], GIVEN_BIAS, at, KEPT_WORD(turn));
    read_kept_low(gs, g, at);
    read_kept(xs, SOURCE(x, at), at);
    EACH_ROW(row) {
        A dy[PER][VECTOR], n[PER][VECTOR], sums[2], m = mean, s = rstd;
        Row here = at;
        sums[0] = sums[1] = 0;
        EACH_KEPT(turn) {
            low_numbers_of(dy[turn], gs[turn], IS_KEPT(here, turn));
            numbers_of(n[turn], xs[turn], IS_KEPT(here, turn), 0);
        }
        // Prefetches the next row while this one is joined and written.
        at = row_of(row + GROUPS * TEAMS < rows ? row + GROUPS * TEAMS : row, rows, extent);
        mean = means[at.row];
        rstd = rstds[at.row];
        read_kept_low(gs, g, at);
        read_kept(xs, SOURCE(x, at), at);
        Read more[PER];
        if (IS_SET(ADDED)) read_kept(more, GIVEN_ADDED, here);
        if (HAS_SLOPE) EACH_KEPT(turn) argument_slopes(dy[turn], n[turn], ws[turn], bs[turn], m, s, IS_KEPT(here, turn));
        EACH_KEPT(turn) slopes_of(sums, dy[turn], n[turn], ws[turn], m, s);
        if (IS_SET(PARAMETERS) && row < rows) {
            EACH_KEPT(turn) EACH_ELEMENT(j) {
                dw[turn][j] += dy[turn][j] * n[turn][j];
                db[turn][j] += dy[turn][j];
            }
        }
        if (IS_SET(OTHERS)) EACH_BATCH(here, b) {
            Low a[BATCH];
            Read c[BATCH];
            A p[VECTOR], q[VECTOR], r[VECTOR];
            read_batch_low(a, g, here, b);
            read_batch(c, SOURCE(x, here), here, b);
            EACH_OF_BATCH(u) {
                idx w = BATCH_WORD(b, u);
                numbers_of_other(p, q, r, a[u], c[u], weight, GIVEN_BIAS, here, w, m, s);
                slopes_of(sums, p, q, r, m, s);
                i64 to = GROUP * extent + w * VECTOR;
                if (IS_SET(PARAMETERS) && w < here.words) {
                    EACH_ELEMENT(j) {
                        weights[to + j] = p[j] * q[j] + (base == GROUP ? (A)0 : weights[to + j]);
                        biases[to + j] = p[j] + (base == GROUP ? (A)0 : biases[to + j]);
                    }
                }
            }
        }
        if (!IS_SET(DX)) continue;
        joined_sums(sums, SIDE(2), extent);
        // The gradient of a single element is 0; the products above would leave rounding errors.
        if (IS_SET(CENTERED) && extent == 1) s = 0;
        if (row < rows) {
            EACH_KEPT(turn) {
                A d[VECTOR];
                slopes_to(d, dy[turn], n[turn], ws[turn], sums, s);
                if (IS_SET(ADDED)) EACH_ELEMENT(j) d[j] += (A)LOAD(T, more[turn].each, j);
                put_numbers(dx, d, here, KEPT_WORD(turn));
                PUT_LOW_DX(d, here, KEPT_WORD(turn));
            }
        }
        if (IS_SET(OTHERS)) EACH_BATCH_BACK(here, b) {
            Low a[BATCH];
            Read c[BATCH], further;
            A p[VECTOR], q[VECTOR], r[VECTOR], d[VECTOR];
            read_batch_low(a, g, here, b);
            read_batch(c, SOURCE(x, here), here, b);
            EACH_OF_BATCH(u) {
                idx w = BATCH_WORD(b, u);
                numbers_of_other(p, q, r, a[u], c[u], weight, GIVEN_BIAS, here, w, m, s);
                EACH_ELEMENT(j) q[j] = STANDARDISED(q[j], m, s);
                slopes_to(d, p, q, r, sums, s);
                if (IS_SET(ADDED)) {
                    SET_WORD(further, *word_at(GIVEN_ADDED, here, w));
                    EACH_ELEMENT(j) d[j] += (A)LOAD(T, further.each, j);
                }
                put_numbers(dx, d, here, w);
                PUT_LOW_DX(d, here, w);
            }
        }
    }
    if (!IS_SET(PARAMETERS)) return;
    if (TEAMS > 1) {
        // The teams add their columns to the first team's, one team after the other.
        for (int team = TEAMS - 1; team >= 0; team--) {
            if (LANE / TEAM == team) {
                EACH_KEPT(turn) EACH_ELEMENT(j) {
                    int c = (MEMBER + turn * TEAM) * VECTOR + j;
                    if (team < TEAMS - 1) {
                        dw[turn][j] += columns[c];
                        db[turn][j] += columns[MOST_COLUMNS + c];
                    }
                    columns[c] = dw[turn][j];
                    columns[MOST_COLUMNS + c] = db[turn][j];
                }
            }
            BARRIER();
        }
        if (LANE >= TEAM) return;
    }
    EACH_KEPT(turn) {
        if (KEPT_WORD(turn) < at.words) {
            i64 to = GROUP * extent + KEPT_WORD(turn) * VECTOR;
            EACH_ELEMENT(j) {
                weights[to + j] = dw[turn][j];
                biases[to + j] = db[turn][j];
            }
        }
    }
}

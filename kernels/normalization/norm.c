// Normalisation of rows, forward and backward.
//
// T: f16, bf16, f32 or f64, dtype of the rows
// P: dtype of weight and bias
// ACC: f32 or f64, dtype of the arithmetic
// CENTERED: flag, the mean is subtracted
// WEIGHT, BIAS: flags, there is a weight, a bias
// ACTIVATION: name of a function of one operand, which precedes this file and is applied to the result
// RESIDUAL: flag, a residual is added to x, and the rounded sum is written to `stream` and normalised
// LOW: f16 or bf16, dtype of x, of the result and of their gradients where the sum with the residual is f32
// LOW_WORD: with LOW, type of a word of VECTOR elements of that dtype
// PIECE: u16 .. u32x4, type of the words in which weight and bias are read; needs WHOLE
// CHANNELS: flag, rows are `groups` groups of channels with `inner` elements each; a channel has one weight and bias
// ALIKE: flag, with CHANNELS, the elements of a word belong to the same channel
// INDEX: i32 or i64, dtype of an index that selects rows of a table of `table_rows`; needs WHOLE. A bad index is reported, and its
//   row is NaN
// UPDATED: flag, running statistics are updated from the statistics of the rows, by norm_update
// MOMENTUM: flag, with UPDATED, a batch has the weight `momentum`; otherwise all batches have the same weight
// BACKWARD: flag, the gradient; needs WHOLE
// DX, PARAMETERS: flags, with BACKWARD, the gradients that are wanted
// SLOPE: with BACKWARD, name of a function of dy and of the activation's argument, which precedes this file: the argument's gradient
// OF_RESULT: flag, with SLOPE, the function reads the activation's result, of which only the sign matters
// ADDED: flag, with BACKWARD, a further gradient is added to dx
// WIDE: flag, positions have 64 bits
// the other defines of rows in common.h

typedef STORAGE(P) SP;

#ifdef INDEX
typedef STORAGE(INDEX) SI;
#define INDEXED GLOBAL const SI *index, i64 table_rows,

// x, shifted so that a row of the table is at the position of the row of the result. A bad index selects the first row.
FUNCTION GLOBAL const STORAGE(T) *table_for(GLOBAL const STORAGE(T) *x, GLOBAL const SI *index, i64 table_rows, i64 row,
                                            i64 extent) {
    i64 named = index[row];
    return x + (((u64)named < (u64)table_rows ? named : 0) - row) * extent;
}
#define SOURCE(x, at) table_for(x, index, table_rows, (at).row, extent)
#else
#define INDEXED
#define SOURCE(x, at) (x)
#endif

#ifdef PER
// The parameter of an element.
#if defined(CHANNELS) && defined(WIDE)
#define PARAMETER(position, inner) ((u64)(position) / (u64)(inner))
#elif defined(CHANNELS)
#define PARAMETER(position, inner) ((u32)(position) / (u32)(inner))
#else
#define PARAMETER(position, inner) (position)
#endif

#ifdef LOW
typedef STORAGE(LOW) SL;
typedef union {
    LOW_WORD all;
    SL each[VECTOR];
} Low;

FUNCTION GLOBAL const LOW_WORD *low_word_at(GLOBAL const SL *x, Row at, idx w) {
    return (GLOBAL const LOW_WORD *)(x + (at.words > 0 ? at.first + POSITION(at, w < at.words ? w : 0, 0) : 0));
}

FUNCTION void read_kept_low(Low *r, GLOBAL const SL *x, Row at) {
    EACH_KEPT(turn) r[turn].all = *low_word_at(x, at, KEPT_WORD(turn));
}

FUNCTION void read_batch_low(Low *r, GLOBAL const SL *x, Row at, idx b) {
    EACH_OF_BATCH(u) r[u].all = *low_word_at(x, at, BATCH_WORD(b, u));
}

FUNCTION void low_numbers_of(A *v, Low r, int is_inside) {
    EACH_ELEMENT(j) v[j] = is_inside ? (A)LOAD(LOW, r.each, j) : (A)0;
}

FUNCTION void put_low(GLOBAL SL *y, const A *v, Row at, idx w) {
    Low r;
    EACH_ELEMENT(j) STORE(LOW, r.each, j, v[j]);
    if (w < at.words) *(GLOBAL LOW_WORD *)(y + (at.first + POSITION(at, w, 0))) = r.all;
}

FUNCTION void put_low_edge(GLOBAL SL *y, A v, Row at) { STORE(LOW, y, at.first + at.edge, v); }
#define LOW_AT(x, i) ((A)LOAD(LOW, x, i))
#else
typedef S SL;
typedef Read Low;
#define low_numbers_of(v, r, is_inside) numbers_of(v, r, is_inside, 0)
#define put_low put_numbers
#define put_low_edge put_edge
#define LOW_AT(x, i) ((A)LOAD(T, x, i))
#define read_kept_low read_kept
#define read_batch_low read_batch
#endif

// The parameters of a word.
FUNCTION void parameters_of(A *v, GLOBAL const SP *p, Row at, idx w, idx inner) {
    w = w < at.words ? w : 0;
#if defined(ALIKE) && defined(WHOLE)
    A all = LOAD(P, p, PARAMETER(POSITION(at, w, 0), inner));
    EACH_ELEMENT(j) v[j] = all;
#elif defined(PIECE)
    union {
        PIECE all[VECTOR * sizeof(SP) / sizeof(PIECE)];
        SP each[VECTOR];
    } r;
    GLOBAL const PIECE *from = (GLOBAL const PIECE *)(p + w * VECTOR);
#pragma unroll
    for (int i = 0; i < (int)(VECTOR * sizeof(SP) / sizeof(PIECE)); i++) r.all[i] = from[i];
    EACH_ELEMENT(j) v[j] = (A)LOAD(P, r.each, j);
#else
    EACH_ELEMENT(j) v[j] = at.words > 0 ? (A)LOAD(P, p, PARAMETER(POSITION(at, w, j), inner)) : (A)0;
#endif
}

#include "activate.h"

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

FUNCTION void put_normalised(GLOBAL SL *y, A *v, GLOBAL const SP *weight, GLOBAL const SP *bias, A mean, A rstd, Row at,
                             idx w, idx inner) {
    A p[VECTOR];
    EACH_ELEMENT(j) v[j] = STANDARDISED(v[j], mean, rstd);
#ifdef WEIGHT
    parameters_of(p, weight, at, w, inner);
    EACH_ELEMENT(j) v[j] *= p[j];
#endif
#ifdef BIAS
    parameters_of(p, bias, at, w, inner);
    EACH_ELEMENT(j) v[j] += p[j];
#endif
    EACH_ELEMENT(j) v[j] = activate(v[j]);
    put_low(y, v, at, w);
}

#ifndef BACKWARD
#include "normalization/moments.h"

FUNCTION void put_normalised_edge(GLOBAL SL *y, A v, GLOBAL const SP *weight, GLOBAL const SP *bias, A mean, A rstd,
                                  Row at, idx inner) {
    if (at.edge < 0) return;
    v = STANDARDISED(v, mean, rstd);
#ifdef WEIGHT
    v *= LOAD(P, weight, PARAMETER(at.edge, inner));
#endif
#ifdef BIAS
    v += LOAD(P, bias, PARAMETER(at.edge, inner));
#endif
    put_low_edge(y, activate(v), at);
}

#ifdef RESIDUAL
#define STREAM GLOBAL const S *residual, GLOBAL S *stream,

// Adds a word of x to a word of the residual, rounds the sum, and writes it.
FUNCTION void add_word(Read *r, Low part, GLOBAL S *stream, Row at, idx w, int is_written) {
    Read sum;
    EACH_ELEMENT(j) STORE(T, sum.each, j, LOW_AT(part.each, j) + (A)LOAD(T, r->each, j));
    if (is_written && w < at.words) *(GLOBAL WORD *)(stream + (at.first + POSITION(at, w, 0))) = sum.all;
    SET_WORD((*r), sum.all);
}

FUNCTION A added_edge(GLOBAL const SL *x, GLOBAL const S *residual, GLOBAL S *stream, Row at, int is_written) {
    if (at.edge < 0) return 0;
    S sum[1];
    STORE(T, sum, 0, LOW_AT(x, at.first + at.edge) + (A)LOAD(T, residual, at.first + at.edge));
    if (is_written) stream[at.first + at.edge] = sum[0];
    return (A)LOAD(T, sum, 0);
}
#else
#define STREAM
#endif

// Sums over rows. The first, with CENTERED, is the sum of differences from a mean.
#ifdef CENTERED
#define FIRST_SUM 0
#define SUMS 2
#else
#define FIRST_SUM 1
#define SUMS 1
#endif

// The parameters of a row.
#ifdef CHANNELS
#define OF_ROW(p) ((p) + at.row % groups * (extent / inner))
#else
#define OF_ROW(p) (p)
#endif

KERNEL(norm)(GLOBAL const SL *x, GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL SL *y, GLOBAL A *means,
             GLOBAL A *rstds, INDEXED STREAM i64 rows, i64 extent, i64 groups, i64 inner, A eps, GLOBAL i64 *status) {
#ifdef UPDATED
    LET_NEXT_START();
#endif
    JOINS(SUMS);
#ifdef OTHERS
    SHARED_GIVEN(WORD, held, HELD_WORDS);
#endif
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        GLOBAL const SP *ws = OF_ROW(weight), *bs = OF_ROW(bias);
#ifdef RESIDUAL
        GLOBAL const S *from = residual;
#else
        GLOBAL const S *from = SOURCE(x, at);
#endif
        A v[PER][VECTOR], mean = 0, sums[2];
        sums[0] = sums[1] = 0;
#ifdef OTHERS
        // Comes first, because the kept words take registers.
        Moments others = NO_MOMENTS;
        EACH_BATCH(at, b) {
            Read r[BATCH];
            A n[VECTOR];
            read_batch(r, from, at, b);
#ifdef RESIDUAL
            Low parts[BATCH];
            read_batch_low(parts, x, at, b);
            EACH_OF_BATCH(u) add_word(&r[u], parts[u], stream, at, BATCH_WORD(b, u), row < rows);
#endif
            hold_batch(held, r, b);
            EACH_OF_BATCH(u) {
                numbers_of(n, r[u], BATCH_WORD(b, u) < at.words, 0);
#ifdef CENTERED
                if (BATCH_WORD(b, u) < at.words) add_values(&others, n, VECTOR);
#else
                add_deviations(sums, n, 0, 1);
#endif
            }
        }
        mean = others.sum;
#endif
#ifdef RESIDUAL
        Read kept[PER];
        Low parts[PER];
        read_kept_low(parts, x, at);
        read_kept(kept, residual, at);
        EACH_KEPT(turn) {
            add_word(&kept[turn], parts[turn], stream, at, KEPT_WORD(turn), row < rows);
            numbers_of(v[turn], kept[turn], IS_KEPT(at, turn), 0);
        }
        A edge = added_edge(x, residual, stream, at, row < rows);
        // Further readings are of the sum. A team without a row has not written it; its results are not used.
        from = row < rows ? stream : residual;
        GLOBAL_BARRIER();
#else
        keep(v, from, at, 0);
        A edge = edge_of(from, at, 0);
#endif
#ifdef CENTERED
        EACH_KEPT(turn) EACH_ELEMENT(j) mean += v[turn][j];
        mean = team_join_one(mean + edge, SIDE(SUMS), JOIN_TO_SUM) / (A)extent;
#endif
        EACH_KEPT(turn) add_deviations(sums, v[turn], mean, IS_KEPT(at, turn));
        if (at.edge >= 0) {
            sums[0] += edge - mean;
            sums[1] += (edge - mean) * (edge - mean);
        }
#ifdef OTHERS
        sums[0] += others.count * (others.mean - mean);
        sums[1] += squares_about(mean, others.count, others.mean, others.squares);
#endif
        team_join(sums + FIRST_SUM, SUMS, SIDE(SUMS), JOIN_TO_SUM);
        A square = sums[1] / (A)extent;
#ifdef CENTERED
        // The smaller the differences, the more exact is the mean.
        A shift = sums[0] / (A)extent;
        mean += shift;
        square -= shift * shift;
        square = square < 0 ? (A)0 : square;
#endif
        A rstd = (A)1 / sqrt_(square + eps);
        if (!IS_IN_RANGE(square, eps)) {
            Slice slice = {at.first, (idx)extent, 0, (idx)extent};
            Spread spread = spread_of(from, slice, FIRST_SUM == 0);
            mean = spread.mean;
            rstd = inverse_of(spread.deviation, eps);
        }
#ifdef INDEX
        i64 named = index[at.row];
        if ((u64)named >= (u64)table_rows) {
            rstd = (A)as_f32(0x7fc00000);
            if (MEMBER == 0) note(status, at.row, named);
        }
#endif
        if (row < rows) {
            if (MEMBER == 0) {
                means[row] = mean;
                rstds[row] = rstd;
            }
            put_normalised_edge(y, edge, ws, bs, mean, rstd, at, (idx)inner);
            EACH_KEPT(turn) put_normalised(y, v[turn], ws, bs, mean, rstd, at, KEPT_WORD(turn), (idx)inner);
        }
#ifdef OTHERS
        EACH_BATCH_BACK(at, b) {
            Read r[BATCH];
            A n[VECTOR];
            read_batch_again(r, held, from, at, b);
            EACH_OF_BATCH(u) {
                numbers_of(n, r[u], 1, 0);
                put_normalised(y, n, ws, bs, mean, rstd, at, BATCH_WORD(b, u), (idx)inner);
            }
        }
#endif
    }
}

#else
#define MOST_COLUMNS (TEAM * PER * VECTOR)

// Adds a word's contribution to the two sums of a row. x becomes xhat = (x - mean) rstd.
FUNCTION void slopes_of(A *sums, const A *dy, A *x, const A *weight, A mean, A rstd) {
    EACH_ELEMENT(j) {
        A h = dy[j] * weight[j];
        x[j] = STANDARDISED(x[j], mean, rstd);
        sums[0] += h * x[j];
        sums[1] += h;
    }
}

// dx = rstd (h - mean(h) - xhat mean(h xhat)), h = dy weight
FUNCTION void slopes_to(A *d, const A *dy, const A *x, const A *weight, const A *sums, A rstd) {
    EACH_ELEMENT(j) d[j] = rstd * (dy[j] * weight[j] - sums[1] - x[j] * sums[0]);
}

#ifdef SLOPE
#define FURTHER GLOBAL const SP *bias,

FUNCTION void biases_of(A *v, GLOBAL const SP *bias, Row at, idx w) {
#ifdef BIAS
    parameters_of(v, bias, at, w, 1);
#else
    EACH_ELEMENT(j) v[j] = 0;
#endif
}

// dy becomes the gradient of the activation's argument, xhat weight + bias.
FUNCTION void argument_slopes(A *dy, const A *x, const A *weight, const A *bias, A mean, A rstd, int is_inside) {
    EACH_ELEMENT(j) {
        A argument = STANDARDISED(x[j], mean, rstd) * weight[j] + bias[j], slope;
#ifdef OF_RESULT
        // As the forward kernel rounds its result.
        S result[1];
        STORE(T, result, 0, argument);
        argument = (A)LOAD(T, result, 0);
#endif
        SLOPE(dy[j], argument, &slope);
        dy[j] = is_inside ? slope : (A)0;
    }
}
#elif defined(ADDED)
#define FURTHER GLOBAL const S *added,
#else
#define FURTHER
#endif

#ifdef LOW
#define LOW_DX GLOBAL SL *low_dx,
#define PUT_LOW_DX(d, at, w) put_low(low_dx, d, at, w)
#else
#define LOW_DX
#define PUT_LOW_DX(d, at, w) ((void)0)
#endif

FUNCTION void weights_of(A *v, GLOBAL const SP *weight, Row at, idx w) {
#ifdef WEIGHT
    parameters_of(v, weight, at, w, 1);
#else
    EACH_ELEMENT(j) v[j] = 1;
#endif
}

LOCAL_FUNCTION void joined_sums(A *sums, LOCAL A *shared, i64 extent) {
    team_join(sums, 2, shared, 0);
    sums[0] /= (A)extent;
#ifdef CENTERED
    sums[1] /= (A)extent;
#else
    sums[1] = 0;
#endif
}

// Both gradients in one pass over the rows. A thread has the same columns of all of its rows. It sums the gradients of their
// parameters in registers or, if there are many columns, in the group's row of `weights` and `biases`.
KERNEL(norm_backward)(GLOBAL const SL *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                      GLOBAL const SP *weight, GLOBAL S *dx, GLOBAL A *weights, GLOBAL A *biases, INDEXED FURTHER LOW_DX
                      i64 rows, i64 extent) {
    JOINS(2);
#if TEAMS > 1 && defined(PARAMETERS)
    SHARED(A, columns, 2 * MOST_COLUMNS);
#endif
    A ws[PER][VECTOR], dw[PER][VECTOR], db[PER][VECTOR];
    Low gs[PER];
    Read xs[PER];
    Row at = row_of(GROUP * TEAMS + LANE / TEAM, rows, extent);
    A mean = means[at.row], rstd = rstds[at.row];
    EACH_KEPT(turn) {
        weights_of(ws[turn], weight, at, KEPT_WORD(turn));
        EACH_ELEMENT(j) dw[turn][j] = db[turn][j] = 0;
    }
#ifdef SLOPE
    A bs[PER][VECTOR];
    EACH_KEPT(turn) biases_of(bs[turn], bias, at, KEPT_WORD(turn));
#endif
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
#ifdef ADDED
        Read more[PER];
        read_kept(more, added, here);
#endif
#ifdef SLOPE
        EACH_KEPT(turn) argument_slopes(dy[turn], n[turn], ws[turn], bs[turn], m, s, IS_KEPT(here, turn));
#endif
        EACH_KEPT(turn) slopes_of(sums, dy[turn], n[turn], ws[turn], m, s);
#ifdef PARAMETERS
        if (row < rows) {
            EACH_KEPT(turn) EACH_ELEMENT(j) {
                dw[turn][j] += dy[turn][j] * n[turn][j];
                db[turn][j] += dy[turn][j];
            }
        }
#endif
#ifdef OTHERS
        EACH_BATCH(here, b) {
            Low a[BATCH];
            Read c[BATCH];
            A p[VECTOR], q[VECTOR], r[VECTOR];
            read_batch_low(a, g, here, b);
            read_batch(c, SOURCE(x, here), here, b);
            EACH_OF_BATCH(u) {
                idx w = BATCH_WORD(b, u);
                low_numbers_of(p, a[u], w < here.words);
                numbers_of(q, c[u], w < here.words, 0);
                weights_of(r, weight, here, w);
#ifdef SLOPE
                A o[VECTOR];
                biases_of(o, bias, here, w);
                argument_slopes(p, q, r, o, m, s, w < here.words);
#endif
                slopes_of(sums, p, q, r, m, s);
#ifdef PARAMETERS
                i64 to = GROUP * extent + w * VECTOR;
                if (w < here.words) {
                    EACH_ELEMENT(j) {
                        weights[to + j] = p[j] * q[j] + (base == GROUP ? (A)0 : weights[to + j]);
                        biases[to + j] = p[j] + (base == GROUP ? (A)0 : biases[to + j]);
                    }
                }
#endif
            }
        }
#endif
#ifdef DX
        joined_sums(sums, SIDE(2), extent);
#ifdef CENTERED
        // The gradient of a single element is 0; the products above would leave rounding errors.
        if (extent == 1) s = 0;
#endif
        if (row < rows) {
            EACH_KEPT(turn) {
                A d[VECTOR];
                slopes_to(d, dy[turn], n[turn], ws[turn], sums, s);
#ifdef ADDED
                EACH_ELEMENT(j) d[j] += (A)LOAD(T, more[turn].each, j);
#endif
                put_numbers(dx, d, here, KEPT_WORD(turn));
                PUT_LOW_DX(d, here, KEPT_WORD(turn));
            }
        }
#ifdef OTHERS
        EACH_BATCH_BACK(here, b) {
            Low a[BATCH];
            Read c[BATCH];
            A p[VECTOR], q[VECTOR], r[VECTOR];
            read_batch_low(a, g, here, b);
            read_batch(c, SOURCE(x, here), here, b);
            EACH_OF_BATCH(u) {
                idx w = BATCH_WORD(b, u);
                low_numbers_of(p, a[u], w < here.words);
                numbers_of(q, c[u], w < here.words, 0);
                weights_of(r, weight, here, w);
#ifdef SLOPE
                A o[VECTOR];
                biases_of(o, bias, here, w);
                argument_slopes(p, q, r, o, m, s, w < here.words);
#endif
                EACH_ELEMENT(j) q[j] = STANDARDISED(q[j], m, s);
                A d[VECTOR];
                slopes_to(d, p, q, r, sums, s);
#ifdef ADDED
                Read more_word;
                SET_WORD(more_word, *word_at(added, here, w));
                EACH_ELEMENT(j) d[j] += (A)LOAD(T, more_word.each, j);
#endif
                put_numbers(dx, d, here, w);
                PUT_LOW_DX(d, here, w);
            }
        }
#endif
#endif
    }
#ifdef PARAMETERS
#if TEAMS > 1
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
#endif
    EACH_KEPT(turn) {
        if (KEPT_WORD(turn) < at.words) {
            i64 to = GROUP * extent + KEPT_WORD(turn) * VECTOR;
            EACH_ELEMENT(j) {
                weights[to + j] = dw[turn][j];
                biases[to + j] = db[turn][j];
            }
        }
    }
#endif
}
#endif

#else
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
#ifndef MOMENTUM
    momentum = (A)1 / (A)batches[0];
#endif
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
#ifdef WEIGHT
    if (GROUP_Y == 0) STORE(P, dweight, c, sum);
#endif
#ifdef BIAS
    if (GROUP_Y == 1) STORE(P, dbias, c, sum);
#endif
}
#endif
#endif

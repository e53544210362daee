// Losses of distances between rows: contrastive and triplet, forward and backward. A team takes a row.
//
// `distances` [DISTANCES, rows]: of a contrastive loss between a and b; of a triplet loss between anchor and positive, between
// anchor and negative and, with NEAREST, between positive and negative.
//
// LIKE: flag, the contrastive loss; otherwise the triplet loss
// NEAREST: flag, a triplet loss with the smaller of the negative's distances
// ORDER: 1 or 2, order of the norm; if not defined, the order is the argument `order`
// BACKWARD: flag, the gradient
// the defines of rows in common.h, T for all rows

#ifdef LIKE
#define DISTANCES 1
#define INPUTS 2
#elif defined(NEAREST)
#define DISTANCES 3
#define INPUTS 3
#else
#define DISTANCES 2
#define INPUTS 3
#endif
#define EACH_INPUT(i) _Pragma("unroll") for (int i = 0; i < INPUTS; i++)
#define EACH_DISTANCE(k) _Pragma("unroll") for (int k = 0; k < DISTANCES; k++)
// The two rows of distance `k`.
#define FROM(k) ((k) == 2 ? 1 : 0)
#define TO(k) ((k) == 0 ? 1 : 2)

#ifndef ORDER
#define POWERED(d) ((d) > 0 ? powr_(d, order) : (d))
#define ROOT(sum) ((sum) > 0 ? powr_(sum, (A)1 / order) : (sum))
// The derivative of the distance with respect to d.
#define PULL(d, distance) (SIGN(d) * ((d) == 0 ? (A)0 : powr_(fabs_(d) / (distance), order - (A)1)))
#elif ORDER == 1
#define POWERED(d) (d)
#define ROOT(sum) (sum)
#define PULL(d, distance) SIGN(d)
#else
#define POWERED(d) ((d) * (d))
#define ROOT(sum) sqrt_(sum)
#define PULL(d, distance) ((d) / (distance))
#endif
#define SIGN(d) ((A)((d) > 0) - (A)((d) < 0))

#ifndef BACKWARD
FUNCTION void add_terms(A *sums, const A *v, A eps, A order) {
    EACH_DISTANCE(k) sums[k] += POWERED(fabs_(v[FROM(k)] - v[TO(k)] + eps));
}

#ifdef ORDER
#define CAN_LEAVE_RANGE (ORDER != 1)
#else
#define CAN_LEAVE_RANGE 1
#endif

// The distance of two rows whose powers leave the range, by a single thread. A rare case. Differences are in units of the largest.
FUNCTION A distance_alone(GLOBAL const S *a, GLOBAL const S *b, idx first, idx extent, A eps, A order) {
    A largest = 0, sum = 0;
    for (idx i = first; i < first + extent; i++) {
        A d = fabs_((A)LOAD(T, a, i) - (A)LOAD(T, b, i) + eps);
        // NaN stays: nothing is at most NaN, and nothing takes its place.
        largest = largest != largest || d <= largest ? largest : d;
    }
    // The rows are equal, or contain infinity or NaN.
    if (largest == 0 || largest - largest != 0) return largest;
    for (idx i = first; i < first + extent; i++) {
        A d = fabs_((A)LOAD(T, a, i) - (A)LOAD(T, b, i) + eps) / largest;
        sum += POWERED(d);
    }
    return largest * ROOT(sum);
}

// `like`: 1 for rows that should be near, else 0.
KERNEL(row_loss)(GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL const S *like, GLOBAL A *losses,
                 GLOBAL A *distances, i64 rows, i64 extent, A margin, A order, A eps) {
    JOINS(DISTANCES);
    GLOBAL const S *x[3] = {a, b, c};
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        A sums[DISTANCES], v[INPUTS];
        EACH_DISTANCE(k) sums[k] = 0;
        EACH_BATCH(at, round) {
            Read r[INPUTS][BATCH];
            EACH_INPUT(i) read_batch(r[i], x[i], at, round);
            EACH_OF_BATCH(u) {
                if (BATCH_WORD(round, u) >= at.words) continue;
                EACH_ELEMENT(j) {
                    EACH_INPUT(i) v[i] = (A)LOAD(T, r[i][u].each, j);
                    add_terms(sums, v, eps, order);
                }
            }
        }
        if (at.edge >= 0) {
            EACH_INPUT(i) v[i] = edge_of(x[i], at, 0);
            add_terms(sums, v, eps, order);
        }
        team_join(sums, DISTANCES, SIDE(DISTANCES), 0);
        if (MEMBER > 0 || row >= rows) continue;
        EACH_DISTANCE(k) {
            if (CAN_LEAVE_RANGE && !HAS_SQUARES(sums[k]))
                sums[k] = distance_alone(x[FROM(k)], x[TO(k)], at.first, (idx)extent, eps, order);
            else
                sums[k] = ROOT(sums[k]);
            distances[k * rows + row] = sums[k];
        }
#ifdef LIKE
        A y = LOAD(T, like, row), left = LARGER(margin - sums[0], (A)0);
        losses[row] = y * sums[0] * sums[0] + ((A)1 - y) * left * left;
#else
        A far = sums[1];
#ifdef NEAREST
        far = sums[2] < far ? sums[2] : far;
#endif
        losses[row] = LARGER(sums[0] - far + margin, (A)0);
#endif
    }
}

#else
// The derivatives of a loss with respect to its distances.
FUNCTION void pulls_of(A *pull, const A *distance, A like, A margin) {
#ifdef LIKE
    A left = margin - distance[0];
    pull[0] = (A)2 * (like * distance[0] - ((A)1 - like) * (left > 0 ? left : (A)0));
#else
    A far = distance[1];
    int is_other = 0;
#ifdef NEAREST
    is_other = distance[2] < far;
    far = is_other ? distance[2] : far;
    pull[2] = is_other ? (A)-1 : (A)0;
#endif
    A is_there = (A)(distance[0] - far + margin >= 0);
    pull[0] = is_there;
    pull[1] = is_other ? (A)0 : -is_there;
#ifdef NEAREST
    pull[2] *= is_there;
#endif
#endif
}

// Adds the gradient of a distance to the gradients of its rows. Equal rows have gradient 0.
FUNCTION void add_slopes(A *d, const A *v, const A *pull, const A *distance, A eps, A order) {
    EACH_INPUT(i) d[i] = 0;
    EACH_DISTANCE(k) {
        A slope = distance[k] == 0 ? (A)0 : pull[k] * PULL(v[FROM(k)] - v[TO(k)] + eps, distance[k]);
        d[FROM(k)] += slope;
        d[TO(k)] -= slope;
    }
}

// `dy_step`: distance between the gradients of rows, 0 for a single number. `share`: 1 for a sum of losses, 1/N for their mean.
KERNEL(row_loss_backward)(GLOBAL const S *dy, GLOBAL const S *a, GLOBAL const S *b, GLOBAL const S *c, GLOBAL const S *like,
                          GLOBAL const A *distances, GLOBAL S *da, GLOBAL S *db, GLOBAL S *dc, i64 rows, i64 extent,
                          A margin, A order, A eps, i64 dy_step, A share) {
    GLOBAL const S *x[3] = {a, b, c};
    GLOBAL S *dx[3] = {da, db, dc};
    EACH_ROW(row) {
        Row at = row_of(row, rows, extent);
        if (row >= rows) continue;
        A distance[DISTANCES], pull[DISTANCES], v[INPUTS], d[INPUTS], y = 0;
        EACH_DISTANCE(k) distance[k] = distances[k * rows + row];
#ifdef LIKE
        y = LOAD(T, like, row);
#endif
        pulls_of(pull, distance, y, margin);
        EACH_DISTANCE(k) pull[k] *= (A)LOAD(T, dy, row * dy_step) * share;
        EACH_BATCH(at, round) {
            Read r[INPUTS][BATCH];
            EACH_INPUT(i) read_batch(r[i], x[i], at, round);
            EACH_OF_BATCH(u) {
                A out[INPUTS][VECTOR];
                EACH_ELEMENT(j) {
                    EACH_INPUT(i) v[i] = (A)LOAD(T, r[i][u].each, j);
                    add_slopes(d, v, pull, distance, eps, order);
                    EACH_INPUT(i) out[i][j] = d[i];
                }
                EACH_INPUT(i) put_numbers(dx[i], out[i], at, BATCH_WORD(round, u));
            }
        }
        if (at.edge >= 0) {
            EACH_INPUT(i) v[i] = edge_of(x[i], at, 0);
            add_slopes(d, v, pull, distance, eps, order);
            EACH_INPUT(i) put_edge(dx[i], d[i], at);
        }
    }
}
#endif

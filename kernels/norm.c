// Normalisation of rows, forward and backward.
//
// T, P and ACC: dtypes of the rows, of weight and bias, and of the arithmetic. CENTERED: the mean is subtracted. WEIGHT,
// BIAS: there is one.

typedef STORAGE(P) SP;

#ifdef PER
#ifdef WEIGHT
#define WEIGHTED(v, w, j) ((v) * LOAD(P, weight, POSITION(w, j)))
#else
#define WEIGHTED(v, w, j) (v)
#endif
#ifdef BIAS
#define BIASED(v, w, j) ((v) + LOAD(P, bias, POSITION(w, j)))
#else
#define BIASED(v, w, j) (v)
#endif

KERNEL(norm)(GLOBAL const S *x, GLOBAL const SP *weight, GLOBAL const SP *bias, GLOBAL S *y, GLOBAL A *means,
             GLOBAL A *rstds, i64 rows, i64 extent, A eps) {
    SHARED(A, shared, THREADS);
    for (i64 row = GROUP; row < rows; row += GROUPS) {
        KEEP(xs);
        FILL(xs, x);
        A mean = 0, squares = 0;
        Read r;
#ifdef CENTERED
        EACH_WORD(w) {
            FETCH(r, xs, x, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) mean += LOAD(T, r.each, j);
        }
        mean = GROUP_SUM(mean, shared) / (A)extent;
#endif
        EACH_WORD(w) {
            FETCH(r, xs, x, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) {
                A v = LOAD(T, r.each, j) - mean;
                squares += v * v;
            }
        }
        A rstd = (A)1 / sqrt_(GROUP_SUM(squares, shared) / (A)extent + eps);
        if (LANE == 0) {
            means[row] = mean;
            rstds[row] = rstd;
        }
        EACH_WORD(w) {
            FETCH(r, xs, x, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) {
                A v = (LOAD(T, r.each, j) - mean) * rstd;
                STORE(T, r.each, j, BIASED(WEIGHTED(v, w, j), w, j));
            }
            PUT_WORD(y, r, w);
        }
    }
}

KERNEL(norm_backward)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                      GLOBAL const SP *weight, GLOBAL S *dx, i64 rows, i64 extent) {
    SHARED(A, shared, THREADS);
    for (i64 row = GROUP; row < rows; row += GROUPS) {
        KEEP(gs);
        KEEP(xs);
        FILL(gs, g);
        FILL(xs, x);
        A mean = means[row], rstd = rstds[row], sum = 0, dot = 0;
        Read a, b;
        EACH_WORD(w) {
            FETCH(a, gs, g, w);
            FETCH(b, xs, x, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) {
                A h = WEIGHTED(LOAD(T, a.each, j), w, j);
                sum += h;
                dot += h * ((LOAD(T, b.each, j) - mean) * rstd);
            }
        }
#ifdef CENTERED
        sum = GROUP_SUM(sum, shared) / (A)extent;
#else
        sum = 0;
#endif
        dot = GROUP_SUM(dot, shared) / (A)extent;
        EACH_WORD(w) {
            FETCH(a, gs, g, w);
            FETCH(b, xs, x, w);
            EACH_ELEMENT(j) if (INSIDE(w, j)) {
                A h = WEIGHTED(LOAD(T, a.each, j), w, j);
                A n = (LOAD(T, b.each, j) - mean) * rstd;
                STORE(T, a.each, j, rstd * (h - sum - n * dot));
            }
            PUT_WORD(dx, a, w);
        }
    }
}

#else
typedef STORAGE(T) S;

// Sums over `part` rows for a line of groups (GROUP_Y); a thread takes a column.
KERNEL(norm_parameters)(GLOBAL const S *g, GLOBAL const S *x, GLOBAL const A *means, GLOBAL const A *rstds,
                        GLOBAL A *weights, GLOBAL A *biases, i64 rows, i64 extent, i64 part) {
    i64 c = GROUP * THREADS + LANE;
    if (c >= extent) return;
    i64 end = (GROUP_Y + 1) * part < rows ? (GROUP_Y + 1) * part : rows;
    A weight = 0, bias = 0;
#pragma unroll 4
    for (i64 row = GROUP_Y * part; row < end; row++) {
        idx at = (idx)(row * extent + c);
        A dy = LOAD(T, g, at);
        weight += dy * ((LOAD(T, x, at) - means[row]) * rstds[row]);
        bias += dy;
    }
    weights[GROUP_Y * extent + c] = weight;
    biases[GROUP_Y * extent + c] = bias;
}

// Joins the parts.
KERNEL(norm_join)(GLOBAL const A *weights, GLOBAL const A *biases, GLOBAL SP *dweight, GLOBAL SP *dbias, i64 parts,
                  i64 extent) {
    i64 c = GROUP * THREADS + LANE;
    if (c >= extent) return;
    A weight = 0, bias = 0;
    for (i64 i = 0; i < parts; i++) {
        weight += weights[i * extent + c];
        bias += biases[i * extent + c];
    }
#ifdef WEIGHT
    STORE(P, dweight, c, weight);
#endif
#ifdef BIAS
    STORE(P, dbias, c, bias);
#endif
}
#endif

// Linear maps along the last dimensions: y[p, o0, o1, o2] = sum over taps of w0 w1 w2 x[p, i0, i1, i2].
//
// A thread writes an element of y. A table has the taps of each dimension: the first tap of each output and one past the last,
// then the position in x of each tap, then its weight. A gradient has the table of the transposed map, so that no two threads add
// to one element.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of x and y
// ACC: f32 or f64, dtype of the arithmetic
// AXES: 1 .. 3, dimensions; before them are planes
// SINGLE: flag, each output has one tap with the weight 1
// WEIGHTED: flag, taps have weights; otherwise they are 1
// OUTPUTS, INPUTS: of the last three dimensions, extents of y and of x
// STARTS, POSITIONS, WEIGHTS: their places in the table
// NEEDS_F64: flag, x is f64
// WIDE: flag, positions have 64 bits

typedef STORAGE(T) S;

typedef union {
    i64 bits;
    A value;
} Weight;

#define EACH_TAP(k, d, o) \
    for (idx k = (idx)table[STARTS(d) + (o)], end_##k = (idx)table[STARTS(d) + (o) + 1]; k < end_##k; k++)
#define POSITION(d, k) ((idx)table[POSITIONS(d) + (k)])

// Adds a term of a sum that begins with -0: a single term keeps its sign.
#ifdef WEIGHTED
FUNCTION A add_term(A sum, A term, i64 bits) {
    Weight w;
    w.bits = bits;
    return fma_(w.value, term, sum);
}
#define ADD_TERM(sum, term, d, k) sum = add_term(sum, term, table[WEIGHTS(d) + (k)])
#else
#define ADD_TERM(sum, term, d, k) sum += (term)
#endif

KERNEL(resample)(GLOBAL const S *x, GLOBAL S *y, GLOBAL const i64 *table, ARGUMENT(Ints) p, i64 n) {
    for (i64 all = GROUP * THREADS + LANE; all < n; all += GROUPS * THREADS) {
        idx rest = (idx)all, o[3] = {0, 0, 0};
        _Pragma("unroll") for (int d = 2; d >= 3 - AXES; d--) {
            idx above = QUOTIENT(rest, OUTPUTS(d), BY_OUTPUTS(d));
            o[d] = rest - above * OUTPUTS(d);
            rest = above;
        }
#ifdef SINGLE
        idx at = rest;
        _Pragma("unroll") for (int d = 3 - AXES; d < 3; d++) at = at * INPUTS(d) + POSITION(d, o[d]);
        y[all] = x[at];
#else
        A sum = -(A)0;
#if AXES > 2
        idx volume = rest * INPUTS(0);
        EACH_TAP(i, 0, o[0]) {
            idx plane = (volume + POSITION(0, i)) * INPUTS(1);
            A of_plane = -(A)0;
#else
        {
            idx plane = rest * INPUTS(1);
#define of_plane sum
#endif
#if AXES > 1
            EACH_TAP(j, 1, o[1]) {
                idx line = (plane + POSITION(1, j)) * INPUTS(2);
                A of_line = -(A)0;
#else
            {
                idx line = rest * INPUTS(2);
#define of_line of_plane
#endif
                EACH_TAP(k, 2, o[2]) {
                    A element = (A)LOAD(T, x, line + POSITION(2, k));
                    ADD_TERM(of_line, element, 2, k);
                }
#if AXES > 1
                ADD_TERM(of_plane, of_line, 1, j);
#endif
            }
#if AXES > 2
            ADD_TERM(sum, of_plane, 0, i);
#endif
        }
        STORE(T, y, all, sum);
#endif
    }
}

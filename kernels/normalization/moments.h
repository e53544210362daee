// Mean and variance: in a single pass, and of values whose squares leave the range.

// The number of values, their sum, their running mean (NaN where the sum is infinite), and the sum of squared deviations from this
// mean.
typedef struct {
    A count, sum, mean, squares;
} Moments;
#define NO_MOMENTS {0, 0, 0, 0}

// The squared deviations of a union are those of both sets, plus d^2 m n / (m + n) for means that differ by d. Chan, Golub and
// LeVeque 1983. For an empty set the term is 0 whatever d is: the counts are multiplied first, before d^2 could be infinite.
FUNCTION void add_values(Moments *m, const A *v, int n) {
    A sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < n; i++) sum += v[i];
    A mean = sum / (A)n;
#pragma unroll
    for (int i = 0; i < n; i++) squares += (v[i] - mean) * (v[i] - mean);
    A apart = mean - m->mean, share = (A)n / (m->count + (A)n);
    m->squares += squares + apart * share * m->count * apart;
    m->mean += apart * share;
    m->sum += sum;
    m->count += (A)n;
}

// The contribution of `count` values with this mean and these squared deviations to the squared deviations of all values, whose
// mean is `all`.
FUNCTION A squares_about(A all, A count, A mean, A squares) {
    A apart = mean - all;
    return squares + apart * count * apart;
}

// True if the square of a deviation, plus eps, is neither infinite nor so small that digits are lost.
#define IS_IN_RANGE(square, eps) ((square) <= MOST_SQUARES && (square) + (eps) >= LEAST_SQUARES)

// 1 / sqrt(deviation^2 + eps) without the square.
FUNCTION A inverse_of(A deviation, A eps) {
    A other = sqrt_(eps), large = deviation < other ? other : deviation, small = deviation < other ? deviation : other;
    // The condition is false for NaN and infinity, so neither is divided.
    A share = large > 0 && large - large == 0 ? small / large : (A)0;
    return (A)1 / (large * sqrt_((A)1 + share * share));
}

// The positions of numbers: runs of `run` adjacent numbers, `step` apart.
typedef struct {
    idx first, run, step, count;
} Slice;
#define EACH_OF_SLICE(at, slice) \
    for (idx at##_run = (slice).first, at##_left = (slice).count; at##_left > 0; \
         at##_run += (slice).step, at##_left -= (slice).run) \
        for (idx at = at##_run; at < at##_run + (slice).run; at++)

typedef struct {
    A mean, deviation;
} Spread;

// The power of 2 that scales a positive number to 1 .. 4.
FUNCTION A scale_of(A v) {
#ifdef NEEDS_F64
    int exponent = 0;
    frexp_(v, &exponent);
    exponent = 1 - exponent;
    return ldexp_((A)1, exponent > 1000 ? 1000 : exponent);
#else
    int exponent = (int)(as_u32(v) >> 23);
    return as_f32((u32)(exponent < 253 ? 254 - exponent : 1) << 23);
#endif
}

// Mean and deviation of scaled numbers, by a single thread. For rare slices. If not `is_centred`, the mean is 0 and the deviation
// is the root of the mean of squares.
FUNCTION Spread spread_of(GLOBAL const S *x, Slice slice, int is_centred) {
    Spread found;
    A largest = 0, sum = 0, shift = 0, squares = 0, part = 0, count = (A)slice.count;
    EACH_OF_SLICE(at, slice) {
        A v = fabs_((A)LOAD(T, x, at));
        if (v != v) {
            // Nothing else counts, and a model whose numbers are all NaN is not slowed down.
            found.mean = found.deviation = v;
            return found;
        }
        largest = v > largest ? v : largest;
    }
    if (largest == 0 || largest - largest != 0) {
        // For zeros and infinities. Quotients are added, because sums of the numbers themselves could be infinite too.
        if (is_centred) {
            EACH_OF_SLICE(at, slice) sum += (A)LOAD(T, x, at) / count;
        }
        found.mean = sum;
        found.deviation = is_centred ? largest - largest : largest;
        return found;
    }
    A scale = scale_of(largest);
    idx seen = 0;
    if (is_centred) {
        // Sums of a few numbers at a time, which keeps rounding errors small.
        EACH_OF_SLICE(at, slice) {
            part += (A)LOAD(T, x, at) * scale;
            if ((++seen & 63) == 0) {
                sum += part;
                part = 0;
            }
        }
    }
    A mean = (sum + part) / count, part_of_shift = 0;
    part = 0;
    EACH_OF_SLICE(at, slice) {
        A d = (A)LOAD(T, x, at) * scale - mean;
        part_of_shift += d;
        part += d * d;
        if ((++seen & 63) == 0) {
            shift += part_of_shift;
            squares += part;
            part_of_shift = part = 0;
        }
    }
    shift = is_centred ? (shift + part_of_shift) / count : (A)0;
    squares = (squares + part) / count - shift * shift;
    found.mean = (mean + shift) / scale;
    found.deviation = sqrt_(squares > 0 ? squares : (A)0) / scale;
    return found;
}

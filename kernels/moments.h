// Mean and variance: of values that are seen once, and of values whose squares leave the range.

// How many values, their sum, their mean as it was found on the way, which is NaN where the sum is infinite, and the sum of the
// squares of what differs from that.
typedef struct {
    A count, sum, mean, squares;
} Moments;
#define NO_MOMENTS {0, 0, 0, 0}

// Of two sets, the squares are those of each, and d^2 m n / (m + n) for means that differ by d. Chan, Golub and LeVeque 1983. If
// one is empty that is 0 whatever d is: the counts are multiplied before its square could be infinite.
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

// What `count` values of this mean and these squares add to the squares of all, whose mean is given.
FUNCTION A squares_about(A all, A count, A mean, A squares) {
    A apart = mean - all;
    return squares + apart * count * apart;
}

// The square of a deviation, with eps, is neither infinite nor so small that digits of it are lost.
#define IS_IN_RANGE(square, eps) ((square) <= MOST_SQUARES && (square) + (eps) >= LEAST_SQUARES)

// 1 / sqrt(deviation^2 + eps) without the square.
FUNCTION A inverse_of(A deviation, A eps) {
    A other = sqrt_(eps), large = deviation < other ? other : deviation, small = deviation < other ? deviation : other;
    // NaN is not less than anything, and infinity is not divided by itself.
    A share = large > 0 && large - large == 0 ? small / large : (A)0;
    return (A)1 / (large * sqrt_((A)1 + share * share));
}

// Where numbers lie: `run` of them side by side, then further ones `step` behind these.
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

// A power of 2 that makes a number from 1 to 4 of a positive one.
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

// Mean and deviation of numbers that are scaled first, by one thread alone: for slices that are seldom met. Without a mean that is
// 0, and the deviation is the root of the mean of squares.
FUNCTION Spread spread_of(GLOBAL const S *x, Slice slice, int is_centred) {
    Spread found;
    A largest = 0, sum = 0, shift = 0, squares = 0, part = 0, count = (A)slice.count;
    EACH_OF_SLICE(at, slice) {
        A v = fabs_((A)LOAD(T, x, at));
        // Nothing is larger than NaN, so that it stays.
        largest = v > largest || v != v ? v : largest;
    }
    if (largest == 0 || largest - largest != 0) {
        // Of zeros, infinities and NaN. Quotients are added, since sums of the others could be infinite too.
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
        // Sums of a few at a time, so that errors do not pile up.
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

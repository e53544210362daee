// The softmax of attention's kernels on matrix units: weights are powers of 2 in f32.

// With a mask, scores have their factor before it is applied.
#ifdef MASK
#define MASK_SCALE scale
#define SLOPE LOG2E
#else
#define MASK_SCALE 1.0f
#define SLOPE (scale * LOG2E)
#endif

// The exponent of the largest score of a row, which is subtracted from those of all: the weight of a score is 2^(score slope - shift). Rows
// without a score above -infinity have weights of 0.
FUNCTION f32 shift_of(f32 largest, f32 slope) { return largest == LOWEST ? 0.0f : largest * slope; }

// Replaces the largest score of a row by that of the row and another tile, whose shift is this. Returns the factor of the sums so far.
FUNCTION f32 raise_largest(f32 *largest, f32 next, f32 slope, f32 shift) {
    f32 factor = *largest == next ? 1.0f : exp2_near_(*largest * slope - shift);
    *largest = next;
    return factor;
}

// The logarithm of the sum of a row's exponentials, from the largest score and the sum of the weights.
FUNCTION f32 log_of_sum(f32 largest, f32 total, f32 slope) {
    return total == 0 ? LOWEST : LN2 * fma_(largest, slope, log2_(total));
}

// The weight of a score in a row whose sum has this logarithm, in units of a logarithm to base 2.
FUNCTION f32 weight(f32 score, f32 slope, f32 lse) { return lse == LOWEST ? 0.0f : exp2_near_(fma_(score, slope, -lse)); }

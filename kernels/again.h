// Sums without the products of elements that are not in memory: included by loaders whose factors have such elements.
//
// Products take an absent element for 0, and 0 times an infinity or NaN is NaN. A result that is NaN is therefore summed again, over the
// elements that are there. Other results need no second sum: what is absent added 0 to them.

// The sum over `count` elements of K from the start of both factors on.
FUNCTION A sum_again(Factor a, Factor b, int row, int column, i64 count) {
    A sum = 0;
    for (i64 k = 0; k < count; k++) {
        if (has_element(a, SIDE_A, row, 0) && has_element(b, SIDE_B, column, 0))
            sum = fma_(LOAD(T, element(a, SIDE_A, row, 0), 0), LOAD(T, element(b, SIDE_B, column, 0), 0), sum);
        advance(&a, SIDE_A, 1);
        advance(&b, SIDE_B, 1);
    }
    return sum;
}

#define SUM_AGAIN(is_there, v, a, b, p, batch, row, column, m0, n0, k0, count) \
    if ((is_there) && (v) != (v)) \
        v = sum_again(factor(a, p, SIDE_A, batch, m0, k0 LOADER_VALUES), factor(b, p, SIDE_B, batch, n0, k0 LOADER_VALUES), row, \
                      column, count)

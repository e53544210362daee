// Sums without the products of elements that are not in memory: included by loaders whose factors have such elements.
//
// Products take an absent element for 0, and 0 times an infinity or NaN is NaN. A thread with a result that is NaN therefore sums all of
// its results again, over the elements that are there. Other results need no second sum: what is absent added 0 to them.

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

#define HAS_ABSENT

// Writes a result of a kernel of products again. `from_k`: the start of this group's part of K.
#define AGAIN(row, column, from_k) \
    if ((row) < rows && (column) < columns) { \
        Factor again_a = factor(a, p, SIDE_A, batch, m0, from_k LOADER_VALUES); \
        Factor again_b = factor(b, p, SIDE_B, batch, n0, from_k LOADER_VALUES); \
        A again = sum_again(again_a, again_b, row, column, k_end - (from_k)); \
        if (n_parts > 1) { \
            to_part[(row) * n + (column)] = again; \
        } else { \
            again *= alpha; \
            FINISH(again, 1, from, (row) * C_STRIDES(1) + (column) * C_STRIDES(2), to, to_z, (row) * n + (column)); \
        } \
    }

// Writes all results of a thread of matrix units again if one is NaN: `sums`, BLOCKS_M x BLOCKS_N blocks of `count` numbers. The number r of
// block (i, j) is in row `row_of(i, r)` and column `column_of(j, r)`. The group's part of K starts at k0.
#define AGAIN_IF_NAN(count, row_of, column_of) \
    do { \
        int is_nan = 0; \
        _Pragma("unroll") for (int i = 0; i < BLOCKS_M; i++) \
            _Pragma("unroll") for (int j = 0; j < BLOCKS_N; j++) \
                _Pragma("unroll") for (int r = 0; r < (count); r++) is_nan |= sums[i][j][r] != sums[i][j][r]; \
        if (!is_nan) break; \
        for (int each = 0; each < BLOCKS_M * BLOCKS_N * (count); each++) { \
            int i = each / (BLOCKS_N * (count)), j = each / (count) % BLOCKS_N, r = each % (count); \
            int row = row_of(i, r), column = column_of(j, r); \
            AGAIN(row, column, k0); \
        } \
    } while (0)

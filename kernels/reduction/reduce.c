// Reductions. x has kept dimensions, which are the dimensions of the results, and reduced dimensions.
//
//   reduce_rows     elements of a result lie side by side: a team of threads computes one result
//   reduce_columns  results lie side by side: adjacent threads compute adjacent results
//
// A result is the reduction of `count` elements. A launch reduces `part` of them per line of groups (GROUP_Y), and writes the
// results `step` elements apart; a further launch joins them. With LAST_JOINS, the last group of a result to begin joins the parts,
// which the other groups leave for it in `left`. `begun` counts groups when they begin: no group waits for one that is not
// resident, and the count arrives while the group reads. Both are 0 before and after the launch.
//
// THREADS: power of 2, threads of a group
// KEPT, REDUCED: 1.., numbers of kept and reduced dimensions
// KEPT_EXTENT, KEPT_X, KEPT_Y, REDUCED_EXTENT, REDUCED_X: extents of these dimensions, and their strides in x and in y
// X, Y, ACC: dtypes of x, of y and of the arithmetic
// PARTIAL_X, PARTIAL_Y: flags, x, y hold partial results, in place of X, Y
// JOIN_SUM, JOIN_PROD, JOIN_SQUARES, JOIN_MAX, JOIN_MIN, JOIN_ARGMAX, JOIN_ARGMIN: flag, the reduction
// SCALED: i64, type of the exponents of a product of floats
// JOIN_POWERS: flag, the sum of powers of e
// JOIN_SPREAD: flag, mean and squared deviations
// FINISH_MEAN, FINISH_NORM, FINISH_LOG: flag, the function of the joined result: quotient by `divisor`, root, logarithm
// TWOFOLD: flag, `second` gets 1 over the number of elements equal to the extremum; of JOIN_SPREAD the mean; of JOIN_POWERS the
//   largest elements, then the logarithms of the sums relative to them
// SUMS: 2, 3, sums that the steps of ROW make, each of which has its own y
// LAST_NAN: flag, a position is that of the last NaN, not of the first
// SQUARES: flag, squares are joined
// EDGES: flag, with SQUARES, sums may leave the range
// SHARES: flag, elements are multiplied by a power of 2 below 1 / count, so that sums stay in range
// ROWS: flag, reduce_rows; otherwise reduce_columns
// VECTOR: 1 .. 16, elements that a thread reads at once
// WORD: type of VECTOR elements
// UNROLL: 1.., reads in flight
// READS_REST: flag, the remaining reads of a part, fewer than UNROLL, are in flight together as well
// LAST_JOINS: flag, the last group joins the parts
// AT_ONCE: groups that a multiprocessor should run together
// ROW: name of a pointwise row whose result is reduced; the generated source before this file reads and writes its other operands
// INTEGER, NEEDS_F64: flags, the arithmetic is i64, f64
// WIDE: flag, positions have 64 bits

#include "flags.h"

#define LOG2(n) (63 - leading_zeros_u64(n))

// The number of results. `results` counts vectors of them in reduce_columns.
#define RESULTS (IS_SET(ROWS) ? results : results * VECTOR)

#ifdef INTEGER
typedef f32 Divisor;
#else
typedef A Divisor;
#endif

// A sum, divided with FINISH_MEAN.
FUNCTION A mean_of(A sum, Divisor divisor) {
    if (IS_SET(FINISH_MEAN)) return (A)(sum / divisor);
    return sum;
}

// What is joined. A fold is a file with
//
//   P, VALUE                the type of a partial result, and its value
//   NOTHING, take, join     the partial result of no element, of element `i`, of two partial results
//   FINISHED, PUT_SECOND    the result, and the writing of a second one
//   STATE, START            what a thread knows beside its accumulators, and its first value, for `n` results
//   SET_PIVOT, ADD_PIVOT    change the origin of the elements of result `j`, and of the result, if the fold has one
//   ADDED                   `a` joined with element `at` of x, which is element `i` of result `j` of the thread
//   TAKES_VECTORS           whether a vector counts as one element, which TAKE_VECTOR adds to `acc`; otherwise each element of it
//                           has an accumulator
//   TAKES_TOGETHER          whether TAKE_VECTOR adds `n` vectors
//   END_VECTORS             what follows after all vectors of a part; `first` is the first element of the thread, if there is any
#if defined(JOIN_ARGMAX) || defined(JOIN_ARGMIN)
#include "reduction/fold/position.h"
#elif defined(JOIN_POWERS)
#include "reduction/fold/powers.h"
#elif defined(JOIN_SPREAD)
#include "reduction/fold/spread.h"
#elif defined(JOIN_SQUARES)
#include "reduction/fold/norm.h"
#elif defined(SCALED)
#include "reduction/fold/product.h"
#elif defined(TWOFOLD)
#include "reduction/fold/ties.h"
#elif defined(SUMS)
#include "reduction/fold/sums.h"
#else
#include "reduction/fold/value.h"
#endif

#ifdef PARTIAL_Y
typedef P To;
#define PUT(y, at, result) ((y)[at] = (result))
#else
typedef STORAGE(Y) To;
#define PUT(y, at, result) \
    do { \
        STORE(Y, y, at, FINISHED(result)); \
        PUT_SECOND(at, result); \
    } while (0)
#endif

// Adds to `from` and `to` the positions of result `number` in x and y. `unit` results share a number.
FUNCTION void place(Ints p, idx number, int unit, idx *from, idx *to) {
#pragma unroll
    for (int d = KEPT - 1; d >= 0; d--) {
        idx c = d == 0 ? number : number % KEPT_EXTENT(d);
        if (d > 0) number /= KEPT_EXTENT(d);
        if (d == KEPT - 1) c *= unit;
        *from += c * KEPT_X(d);
        *to += c * KEPT_Y(d);
    }
}

// The position in x of element `number` of a result.
FUNCTION idx element(Ints p, idx number) {
    idx at = 0;
#pragma unroll
    for (int d = REDUCED - 1; d >= 0; d--) {
        idx c = d == 0 ? number : number % REDUCED_EXTENT(d);
        if (d > 0) number /= REDUCED_EXTENT(d);
        at += c * REDUCED_X(d);
    }
    return at;
}

#ifndef SUM_PARAMETERS
#define SUM_PARAMETERS
#endif

// How threads share the work.
#ifdef ROWS
#include "reduction/reduce_rows.h"
#else
#include "reduction/reduce_columns.h"
#endif

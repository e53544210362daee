// Reductions within a generated kernel of rows: a team of threads has a row, and adds up its elements in the order of reduce_rows.
//
// THREADS, TEAM: threads of a group and of a row, powers of 2
// VECTOR: 1 .. 16, elements of a word, each of which has an accumulator of its own
// ACC: f32 or f64, dtype of the arithmetic

#include "reduction/team.h"

// As in reduce_words.h.
#define LOG2(n) (63 - leading_zeros_u64(n))
#define SHARE_OF(count) as_f32((u32)(126 - LOG2(count)) << 23)

FUNCTION A sum_of(A a, A b) { return a + b; }
FUNCTION A larger_of(A a, A b) { return LARGER(a, b); }
FUNCTION A smaller_of(A a, A b) { return SMALLER(a, b); }

TEAM_JOINED(joined_sum, A, from_lane, sum_of, 1)
TEAM_JOINED(joined_larger, A, from_lane, larger_of, 1)
TEAM_JOINED(joined_smaller, A, from_lane, smaller_of, 1)
TEAM_SPREAD(spread_to_all, A, from_lane)

// Joins the accumulators of a thread, and then those of its team.
#define JOIN_ROW(acc, join, joined, is_symmetric) \
    do { \
        _Pragma("unroll") for (int below = VECTOR / 2; below > 0; below /= 2) { \
            _Pragma("unroll") for (int j = 0; j < below; j++) acc[j] = join(acc[j], acc[j + below]); \
        } \
        side ^= 1; \
        acc[0] = joined(acc[0], MEMBER, TEAM, shared + side * THREADS); \
        acc[0] = spread_to_all(acc[0], MEMBER, TEAM, is_symmetric, shared + side * THREADS); \
    } while (0)

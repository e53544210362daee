// Shared by the kernels of attention: the operands, the mask, and the draws of dropout.
//
// T: f16, bf16 or f32, dtype of q, k, v, o and their gradients
// INTS: 24, length of `p`
// MASK: bool (false excludes a key), or the dtype of floats that are added to scores; not defined without a mask
// ADDS_MASK: flag, the mask has floats
// DROPOUT: flag, weights are multiplied by 0 or `kept`
// BASE: flag, numbers in memory are added to the generator's state
// TILE: rows that are copied together, at most
//
// p: Tq, Tk, D, Hq, Hq / Hk, tiles, low, high (query i attends to keys from i + low to i + high); strides of batches, heads and rows of
// q, k, v and dy; strides of batches, heads, queries and keys of the mask

#include "philox.h"

typedef STORAGE(T) S;

#define QUERY_STRIDES 8
#define KEY_STRIDES 11
#define VALUE_STRIDES 14
#define DY_STRIDES 17
#define MASK_STRIDES 20

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

// Rows of a factor: the first, the distance between them, and their number in memory.
typedef struct {
    GLOBAL const S *x;
    i64 step;
    int count;
} Rows;

FUNCTION Rows rows_of(GLOBAL const S *x, Ints p, int strides, i64 batch, i64 head, int row, int end) {
    Rows rows;
    rows.step = p.v[strides + 2];
    rows.x = x + (batch * p.v[strides] + head * p.v[strides + 1] + row * rows.step);
    rows.count = end - row < TILE ? end - row : TILE;
    return rows;
}

#ifdef MASK
typedef STORAGE(MASK) M;
#define MASK_ARGUMENTS , GLOBAL const M *mask
#define MASK_VALUES , mask
#else
#define MASK_ARGUMENTS
#define MASK_VALUES
#endif

// A score: -infinity for a query or key that is not there, and for a masked key.
FUNCTION A masked(A score, Ints p, i64 batch, i64 head, int query, int key MASK_ARGUMENTS) {
    int distance = key - query;
    if (query >= (int)p.v[0] || key >= (int)p.v[1] || distance < (int)p.v[6] || distance > (int)p.v[7]) return LOWEST;
#ifdef MASK
    i64 at = batch * p.v[MASK_STRIDES] + head * p.v[MASK_STRIDES + 1] + query * p.v[MASK_STRIDES + 2] + key * p.v[MASK_STRIDES + 3];
#ifdef ADDS_MASK
    score += (A)LOAD(MASK, mask, at);
#else
    if (!mask[at]) return LOWEST;
#endif
#endif
    return score;
}

#ifdef DROPOUT
#define DROPOUT_ARGUMENTS , GLOBAL const i64 *base, i64 seed, i64 offset, i64 stream, i64 threshold, A kept
#define DROPOUT_VALUES , base, seed, offset, stream, threshold, kept

// The factors of the weights of a query and four adjacent keys, `step` apart in v.
FUNCTION void factors(A *v, int step, i64 element DROPOUT_ARGUMENTS) {
    u64 block = (u64)offset + (u64)(element >> 2);
    u32 draws[8], last = (u32)(threshold - 1);
    Draws first = draws_of(base, block, seed, stream), second = draws_of(base, block + 1, seed, stream);
    EACH(i, 4) {
        draws[i] = first.v[i];
        draws[i + 4] = second.v[i];
    }
    if (element & 1) EACH(i, 7) draws[i] = draws[i + 1];
    if (element & 2) EACH(i, 6) draws[i] = draws[i + 2];
    EACH(i, 4) v[i * step] = draws[i] <= last ? kept : (A)0;
}
#else
#define DROPOUT_ARGUMENTS
#define DROPOUT_VALUES
#endif

// The number in the score matrix of a query and a key.
#define ELEMENT(query, key) (((batch * p.v[3] + head) * p.v[0] + (query)) * p.v[1] + (key))

// sums, joins: the sum of each segment of rows that are sorted by key, in parts of `part` rows.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// K, LIST: as in scatter/ordered.h
// ADDING and the defines of scatter/sum.h
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"
#include "indexing/scatter/sum.h"
#include "indexing/scatter/ordered.h"

// Rows that are read before they are added, so that reads overlap.
#define AHEAD 8
#define EACH_AHEAD(i) _Pragma("unroll") for (int i = 0; i < AHEAD; i++)

#ifdef MEAN
// The first row whose key is at least `key`.
FUNCTION idx bound(GLOBAL const K *keys, idx rows, K key) {
    idx low = 0, high = rows;
    while (low < high) {
        idx middle = low + (high - low) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#define LENGTH(keys, rows, key) (bound(keys, rows, (key) + 1) - bound(keys, rows, key))
#else
#define LENGTH(keys, rows, key) 0
#endif

// Rows of y in which a thread writes zeros where no key points.
#define ZERO_ROWS 32

// sums: a thread takes a word of all rows of a part. A segment within one part is finished here. Of a longer segment, the sum in
// its first part is the tail, and the sums in the other parts are heads. With FRESH, further threads write zeros where no key
// points.
KERNEL(sums)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, GLOBAL i32 *counts,
             GLOBAL i64 *first, GLOBAL Sum *heads, GLOBAL Sum *tails, GLOBAL const u8 *used, ARGUMENT(Ints) p, i64 rows, i64 width,
             i64 by_width, i64 along, i64 extent, i64 bad, i64 part) {
    i64 n = (rows + part - 1) / part * width, all = n;
#ifdef FRESH
    all += (extent + ZERO_ROWS - 1) / ZERO_ROWS * width;
#endif
    for (i64 e = GROUP * THREADS + LANE; e < all; e += GROUPS * THREADS) {
#ifdef FRESH
        if (e >= n) {
            idx block = QUOTIENT((idx)(e - n), width, by_width), w = (idx)(e - n) - block * (idx)width;
            idx last = (block + 1) * ZERO_ROWS;
            if (last > (idx)extent) last = (idx)extent;
            for (idx row = block * ZERO_ROWS; row < last; row++)
                if (!used[row]) PUT(row * (idx)along + TO(w), row, w, zero(), 0);
            continue;
        }
#endif
        idx block = QUOTIENT((idx)e, width, by_width), w = (idx)e - block * (idx)width;
        idx k = block * (idx)part, to = TO(w), from = FROM(w);
        idx end = k + (idx)part < (idx)rows ? k + (idx)part : (idx)rows;
        K key = keys[k];
        int is_head = k > 0 && keys[k - 1] == key;
        idx start = k, at = IS_BAD(key) ? 0 : TO_ROW(key) + to;
        Sum sum = is_head || IS_BAD(key) ? zero() : BEFORE(y, at);
        for (; k < end; k += AHEAD) {
            Word read[AHEAD];
            // The reads of a whole batch wait for no branch, and not for each other. 64-bit numbers leave too few registers for
            // that.
            if (sizeof(A) < 8 && k + AHEAD <= end) {
                EACH_AHEAD(i) SET_WORD(read[i], ((GLOBAL const WORD *)source)[FROM_ROW(k + i) + from]);
            } else {
                EACH_AHEAD(i) if (k + i < end) SET_WORD(read[i], ((GLOBAL const WORD *)source)[FROM_ROW(k + i) + from]);
            }
            EACH_AHEAD(i) if (k + i < end) {
                K next = keys[k + i];
                if (next != key) {
                    if (is_head)
                        heads[e] = sum;
                    else
                        PUT(at, key, w, sum, k + i - start);
                    is_head = 0;
                    key = next;
                    start = k + i;
                    at = IS_BAD(key) ? 0 : TO_ROW(key) + to;
                    sum = IS_BAD(key) ? zero() : BEFORE(y, at);
                }
                if (!IS_BAD(key)) sum = joined(sum, sum_of(read[i], (idx)order[k + i]));
            }
        }
        if (is_head)
            heads[e] = sum;
        else if (end < (idx)rows && keys[end] == key)
            tails[e] = sum;
        else if (!IS_BAD(key))
            PUT(at, key, w, sum, end - start);
    }
}

// joins: adds the tail of each longer segment and the heads that follow it.
KERNEL(joins)(GLOBAL const K *keys, GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, GLOBAL const Sum *heads,
              GLOBAL const Sum *tails, ARGUMENT(Ints) p, i64 rows, i64 width, i64 by_width, i64 along, i64 extent, i64 bad,
              i64 part) {
    i64 n = (rows + part - 1) / part * width;
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx block = QUOTIENT((idx)e, width, by_width), w = (idx)e - block * (idx)width;
        idx start = block * (idx)part, k = start + (idx)part;
        if (k >= (idx)rows) continue;
        K key = keys[k];
        // Only the part in which a segment starts has its tail.
        if (IS_BAD(key) || keys[k - 1] != key || (start > 0 && keys[start - 1] == key)) continue;
        Sum sum = tails[e];
        i64 head = e;
        while (k < (idx)rows && keys[k] == key) {
            // Added in blocks, which keeps the errors of long sums small.
            Sum block = zero();
            for (int i = 0; i < 64 && k < (idx)rows && keys[k] == key; i++, k += (idx)part) {
                head += width;
                block = joined(block, heads[head]);
            }
            sum = joined(sum, block);
        }
        PUT(TO_ROW(key) + TO(w), key, w, sum, LENGTH(keys, (idx)rows, key));
    }
}

// The order of keys, by one digit after the other, the lowest first. Stable.
//
// THREADS: 1 .. 1024, threads of a group
// K: u32 or u64, type of a key
// DIGITS: power of 2, largest number of values of a digit; `range` is the number of values, a power of 2
// ITEMS: 1.., keys that a thread takes at once
// WIDE: flag, positions have 64 bits

#include "reduction/prefix.h"

#define DIGIT(key) ((int)((key) >> shift) & ((int)range - 1))
#define EACH_DIGIT(d) for (int d = LANE; d < (int)range; d += THREADS)

// digits: the number of occurrences of each digit in each part of the keys; counts: [parts, range].
KERNEL(digits)(GLOBAL const K *keys, GLOBAL u32 *counts, i64 n, i64 part, i64 range, i64 shift) {
    SHARED(u32, own, DIGITS);
    idx end = (idx)(GROUP * part + part < n ? GROUP * part + part : n);
    EACH_DIGIT(d) own[d] = 0;
    BARRIER();
    for (idx e = (idx)(GROUP * part) + LANE; e < end; e += THREADS) add_local(&own[DIGIT(keys[e])], 1);
    BARRIER();
    EACH_DIGIT(d) counts[GROUP * range + d] = own[d];
}

#define CHUNK (THREADS * ITEMS)
#define EACH_ITEM(i) _Pragma("unroll") for (int i = 0; i < ITEMS; i++)

// move: moves the keys of a part, and their original positions. Before the first digit these are 0, 1, 2, ... A group takes CHUNK
// keys at a time.
KERNEL(move)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL K *moved, GLOBAL idx *moved_order,
             GLOBAL const u32 *counts, i64 n, i64 part, i64 range, i64 shift, i64 is_first) {
    SHARED(u32, next, DIGITS);
    SHARED(u32, starts, DIGITS);
    SHARED(u32, sums, THREADS);
    SHARED(u16, entries, CHUNK);
    EACH_DIGIT(d) {
        u32 before = 0, all = 0;
        _Pragma("unroll 16") for (int t = 0; t < (int)GROUPS; t++) {
            u32 count = counts[t * (int)range + d];
            before += t < (int)GROUP ? count : 0;
            all += count;
        }
        next[d] = all;
        starts[d] = before;
    }
    begin(next, (int)range, sums);
    EACH_DIGIT(d) next[d] += starts[d];
    idx end = (idx)(GROUP * part + part < n ? GROUP * part + part : n);
    for (idx chunk = (idx)(GROUP * part); chunk < end; chunk += CHUNK) {
        int size = end - chunk < CHUNK ? (int)(end - chunk) : CHUNK;
        K key[ITEMS];
        u32 entry[ITEMS];
        BARRIER();
        EACH_DIGIT(d) starts[d] = 0;
        BARRIER();
        EACH_ITEM(i) if (i * THREADS + LANE < size) {
            key[i] = keys[chunk + i * THREADS + LANE];
            entry[i] = add_local(&starts[DIGIT(key[i])], 1);
        }
        begin(starts, (int)range, sums);
        EACH_ITEM(i) if (i * THREADS + LANE < size) entries[starts[DIGIT(key[i])] + entry[i]] = (u16)(i * THREADS + LANE);
        BARRIER();
        // The entries of a digit are in any order. An element's position among them is the number of elements before it.
        EACH_ITEM(i) if (i * THREADS + LANE < size) {
            int own = i * THREADS + LANE, d = DIGIT(key[i]);
            int last = d + 1 < (int)range ? (int)starts[d + 1] : size;
            idx to = (idx)next[d];
            for (int k = (int)starts[d]; k < last; k++) to += entries[k] < own;
            moved[to] = key[i];
            moved_order[to] = is_first ? chunk + own : order[chunk + own];
        }
        BARRIER();
        EACH_DIGIT(d)
            next[d] += (d + 1 < (int)range ? starts[d + 1] : (u32)size) - starts[d];
    }
}

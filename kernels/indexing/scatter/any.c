// any: adds in arbitrary order, in the dtype of y. Every addition rounds.
//
// A thread takes a word of the source, which has one index (NUMBERS 1), or an index for each element. If all indices of a word are
// equal, it is added as one.
//
// I, T, VECTOR, WORD: as in index.h
// THREADS: 1 .. 1024, threads of a group
// ROWS, INNER: 1.., dimensions of the index's rows and of a row's words; ROW_SPACE and WORD_SPACE, with strides of the operands, for WALK
// NUMBERS, INDEX_WORD, INDEX_WORDS: as in index.h; with NUMBERS above 1, positions are in elements and not in words
// ACC: f32, dtype of the arithmetic
// WHOLE: flag, a word has 16 bytes
// WIDE: flag, positions have 64 bits

#include "indexing/index.h"

#ifdef HAS_ADDS
#define ADD_ANY(T, p, v) CAT(add_any_, T)(p, v)
#else
// Adds to a 16-bit element, which is half of a 4-byte word.
FUNCTION void add_in_word(GLOBAL S *p, S v) {
    int shift = (int)((u64)p & 3) * 8;
    GLOBAL u32 *word = (GLOBAL u32 *)((GLOBAL u8 *)p - shift / 8);
    u32 own = sizeof(S) == 4 ? ~(u32)0 : 0xffff, old, seen = compare_and_swap(word, 0, 0);
    do {
        union {
            u32 all;
            S each[4 / sizeof(S)];
        } sum;
        old = seen;
        sum.all = old >> shift & own;
        STORE(T, sum.each, 0, LOAD(T, sum.each, 0) + LOAD(T, &v, 0));
        seen = compare_and_swap(word, old, (old & ~(own << shift)) | sum.all << shift);
    } while (seen != old);
}
#define ADD_ANY(T, p, v) add_in_word(p, v)
#endif
#if defined(HAS_ADDS) && defined(WHOLE)
#define ADD_WORD_ANY(T, p, w) CAT(add_word_any_, T)(p, (w).all)
#else
#define ADD_WORD_ANY(T, p, w) EACH_PART(j) ADD_ANY(T, (p) + j, (w).each[j])
#endif

KERNEL(any)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, ARGUMENT(Ints) p, i64 n, i64 width, i64 by_width,
            i64 along, i64 extent, GLOBAL i64 *status) {
    const int size = NUMBERS > 1 ? 1 : VECTOR;
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = QUOTIENT((idx)e, width, by_width), w = (idx)e - row * (idx)width;
        GLOBAL const SI *at = index + WALK(ROW_SPACE, INDEX_STRIDES, ROWS, row);
        idx to = WALK(ROW_SPACE, Y_STRIDES, ROWS, row) + WALK(WORD_SPACE, Y_WORD_STRIDES, INNER, w);
        idx from = WALK(ROW_SPACE, SOURCE_STRIDES, ROWS, row) + WALK(WORD_SPACE, SOURCE_WORD_STRIDES, INNER, w);
        Indices v;
        Word read;
        _Pragma("unroll") for (int k = 0; k < INDEX_WORDS; k++) v.all[k] = ((GLOBAL const INDEX_WORD *)at)[k];
        read.all = *(GLOBAL const WORD *)(source + from * size);
        int is_one = 1;
        _Pragma("unroll") for (int j = 0; j < NUMBERS; j++) {
            is_one &= v.each[j] == v.each[0];
            if ((u64)v.each[j] >= (u64)extent) note(status, (i64)row * NUMBERS + j, v.each[j]);
        }
        if (is_one) {
            if ((u64)v.each[0] < (u64)extent) ADD_WORD_ANY(T, y + (to + (idx)v.each[0] * (idx)along) * size, read);
            continue;
        }
        EACH_PART(j) if ((u64)v.each[j % NUMBERS] < (u64)extent)
            ADD_ANY(T, y + to + (idx)v.each[j % NUMBERS] * (idx)along + j, read.each[j]);
    }
}

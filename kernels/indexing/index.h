// Shared by kernels that read or write at an index: positions of elements, and types of words.
//
// An index has rows. Trailing dimensions along which the index is constant are moved as a whole: a row has `width` words. The index
// gives the position along the indexed dimension. An index out of range is reported with note(), and accesses no memory.
//
// I: dtype of the index
// NUMBERS: 1.., indices that a thread reads at once; not defined where it reads one
// INDEX_WORD: u8 .. u32x4, type of the words of indices
// INDEX_WORDS: 1.., words of indices that are read at once
// T: storage dtype of elements
// VECTOR: 1 .. 16, elements of a word; not defined where a kernel moves no words of T
// WORD: u8 .. u32x4, the type of a word

#ifdef I
typedef STORAGE(I) SI;
#endif

// The position of element `number` of a space of `rank` dimensions: of `rank` extents and `rank` dividers for QUOTIENT, in which an operand
// has these strides. WALK takes the names of both.
FUNCTION idx walk(const i64 *space, const i64 *strides, int rank, idx number) {
    idx at = 0;
#pragma unroll
    for (int d = rank - 1; d >= 0; d--) {
        idx above = d == 0 ? 0 : QUOTIENT(number, space[d], space[rank + d]);
        at += (number - above * (idx)space[d]) * (idx)strides[d];
        number = above;
    }
    return at;
}
#define WALK(SPACE, STRIDES, rank, number) walk(&SPACE(0), &STRIDES(0), rank, number)

#ifdef NUMBERS
typedef union {
    INDEX_WORD all[INDEX_WORDS];
    SI each[NUMBERS];
} Indices;
#endif

#ifdef VECTOR
typedef STORAGE(T) S;
typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Word;

#define EACH_PART(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)
#endif

// A list: the `count` rows of the index that differ only in the indexed dimension. They are `apart` rows from each other. Only rows
// of the same list can have the same position.
#define FIRST_ROW(list, count, apart) ((list) / (apart) * ((count) * (apart)) + (list) % (apart))
#define LIST_OF(row, count, apart) ((row) / ((count) * (apart)) * (apart) + (row) % (apart))

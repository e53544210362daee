// The words of x.

typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Read;
#define EACH_OF_WORD(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)

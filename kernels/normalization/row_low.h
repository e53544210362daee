// Elements of a smaller dtype than that of the rows that are normalised. rows.h lists the names.
//
// LOW: f16 or bf16, dtype of x, of the result and of their gradients where the sum with the residual is f32
// LOW_WORD: type of a word of VECTOR elements of that dtype

typedef STORAGE(LOW) SL;
typedef union {
    LOW_WORD all;
    SL each[VECTOR];
} Low;
#define LOW_AT(x, i) ((A)LOAD(LOW, x, i))

FUNCTION void low_numbers_of(A *v, Low r, int is_inside) {
    EACH_ELEMENT(j) v[j] = is_inside ? (A)LOAD(LOW, r.each, j) : (A)0;
}

FUNCTION GLOBAL const LOW_WORD *low_word_at(GLOBAL const SL *x, Row at, idx w) {
    return (GLOBAL const LOW_WORD *)(x + (at.words > 0 ? at.first + POSITION(at, w < at.words ? w : 0, 0) : 0));
}

FUNCTION void read_kept_low(Low *r, GLOBAL const SL *x, Row at) {
    EACH_KEPT(turn) r[turn].all = *low_word_at(x, at, KEPT_WORD(turn));
}

FUNCTION void read_batch_low(Low *r, GLOBAL const SL *x, Row at, idx b) {
    EACH_OF_BATCH(u) r[u].all = *low_word_at(x, at, BATCH_WORD(b, u));
}

FUNCTION void put_low(GLOBAL SL *y, const A *v, Row at, idx w) {
    Low r;
    EACH_ELEMENT(j) STORE(LOW, r.each, j, v[j]);
    if (w < at.words) *(GLOBAL LOW_WORD *)(y + (at.first + POSITION(at, w, 0))) = r.all;
}

FUNCTION void put_low_edge(GLOBAL SL *y, A v, Row at) { STORE(LOW, y, at.first + at.edge, v); }

#define LOW_DX GLOBAL SL *low_dx,
#define PUT_LOW_DX(d, at, w) put_low(low_dx, d, at, w)

// Sums of rows with the same position, and their results. Only with ADDING.
//
// ACC: f32, f64 or i64, dtype of the arithmetic
// INTEGER: flag, sums wrap
// FRESH: flag, y has no values yet; otherwise sums are added to its values
// MEAN: flag, the sum is divided by its number of rows
// LARGEST: flag, the maximum instead of the sum, with the number of rows that have it and the first of them
// COUNTS: flag, `counts` [N] gets the number of rows of each node
// COUNT_WORD, COUNT_WORDS: with LARGEST, type and number of words in which VECTOR counts (i32) are written
// FIRST_WORD, FIRST_WORDS: with LARGEST, type and number of words in which VECTOR rows (i64) are written

#ifdef ADDING
#ifdef LARGEST
// The maximum, where NaN is the largest; the first row that has it, or -1 without rows; the number of rows that have it.
typedef struct {
    A v[VECTOR];
    idx first[VECTOR];
    idx ties[VECTOR];
} Sum;

FUNCTION Sum zero(void) {
    Sum sum;
    EACH_PART(j) {
        sum.v[j] = LOWEST;
        sum.first[j] = -1;
        sum.ties[j] = 0;
    }
    return sum;
}

// Rows of b come after the rows of a.
FUNCTION Sum joined(Sum a, Sum b) {
    EACH_PART(j) {
        int is_larger = a.first[j] < 0 || (!(b.v[j] <= a.v[j]) && !IS_NAN(a.v[j]));
        idx more = b.v[j] == a.v[j] ? b.ties[j] : 0;
        a.ties[j] = is_larger ? b.ties[j] : a.ties[j] + more;
        a.first[j] = is_larger ? b.first[j] : a.first[j];
        a.v[j] = is_larger ? b.v[j] : a.v[j];
    }
    return a;
}

FUNCTION Sum sum_of(Word w, idx row) {
    Sum sum;
    EACH_PART(j) {
        sum.v[j] = (A)LOAD(T, w.each, j);
        sum.first[j] = row;
        sum.ties[j] = !IS_NAN(sum.v[j]);
    }
    return sum;
}
#else
typedef struct {
    A v[VECTOR];
} Sum;

FUNCTION Sum zero(void) {
    Sum sum;
    EACH_PART(j) sum.v[j] = 0;
    return sum;
}

FUNCTION Sum joined(Sum a, Sum b) {
    EACH_PART(j) a.v[j] = ADD(a.v[j], b.v[j]);
    return a;
}

FUNCTION Sum sum_of(Word w, idx row) {
    Sum sum;
    EACH_PART(j) sum.v[j] = (A)LOAD(T, w.each, j);
    return sum;
}
#endif

FUNCTION Sum load(GLOBAL const S *x, idx word, idx row) {
    Word w;
    w.all = ((GLOBAL const WORD *)x)[word];
    return sum_of(w, row);
}

FUNCTION void store(GLOBAL S *y, idx word, Sum sum) {
    Word w;
    EACH_PART(j) STORE(T, w.each, j, sum.v[j]);
    ((GLOBAL WORD *)y)[word] = w.all;
}

// The initial value of a sum.
#ifdef FRESH
#define BEFORE(y, at) zero()
#else
#define BEFORE(y, at) load(y, at, 0)
#endif

// Writes the result of `length` rows to word `w` of a node, at word `at` of y. `counts` gets the number of rows of a node. With
// LARGEST, `counts` gets the number of rows that have the maximum, for each element, and `first` the first of them.
FUNCTION void put(GLOBAL S *y, GLOBAL i32 *counts, GLOBAL i64 *first, idx at, idx node, idx w, Sum sum, idx length) {
#ifdef MEAN
    EACH_PART(j) sum.v[j] /= (A)(length > 0 ? length : 1);
#endif
#ifdef COUNTS
    if (w == 0) counts[node] = (i32)length;
#endif
#ifdef LARGEST
    union {
        COUNT_WORD all[COUNT_WORDS];
        i32 each[VECTOR];
    } ties;
    union {
        FIRST_WORD all[FIRST_WORDS];
        i64 each[VECTOR];
    } rows;
    EACH_PART(j) {
        if (sum.first[j] < 0) sum.v[j] = 0;
        ties.each[j] = (i32)sum.ties[j];
        rows.each[j] = sum.first[j];
    }
    for (int k = 0; k < COUNT_WORDS; k++) ((GLOBAL COUNT_WORD *)counts)[(i64)at * COUNT_WORDS + k] = ties.all[k];
    for (int k = 0; k < FIRST_WORDS; k++) ((GLOBAL FIRST_WORD *)first)[(i64)at * FIRST_WORDS + k] = rows.all[k];
#endif
    store(y, at, sum);
}
#define PUT(at, node, w, sum, length) put(y, counts, first, at, (idx)(node), w, sum, length)
#endif

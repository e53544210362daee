// Gather and scatter. Trailing dimensions along which the index does not change are moved as a whole: at a row of the
// index lie `width` words. I: dtype of the index. A bad index is noted, and touches no memory.
//
// `p`: extents of ROWS dimensions of the index's rows, then strides along them per operand; extents of INNER dimensions of
// what lies at a row, then strides. Positions in x and y are in words.

typedef STORAGE(I) SI;

// Where element `number` lies, whose `rank` extents start at `base`.
FUNCTION idx walk(Ints p, int base, int rank, int operand, idx number) {
    idx at = 0;
#pragma unroll
    for (int d = rank - 1; d >= 0; d--) {
        idx c = d == 0 ? number : number % (idx)p.v[base + d];
        if (d > 0) number /= (idx)p.v[base + d];
        at += c * (idx)p.v[base + rank * (1 + operand) + d];
    }
    return at;
}

#ifdef GATHER
// y[row, w] = x[row with index[row] along the indexed dimension, w]; words of type WORD.
KERNEL(gather)(GLOBAL const WORD *x, GLOBAL const SI *index, GLOBAL WORD *y, Ints p, i64 n, i64 width, i64 along,
               i64 extent, WORD bad, GLOBAL i64 *status) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = (idx)e / (idx)width, w = (idx)e % (idx)width;
        i64 v = index[walk(p, 0, ROWS, 0, row)];
        if ((u64)v < (u64)extent) {
            y[e] = x[walk(p, 0, ROWS, 1, row) + (idx)v * (idx)along + walk(p, 3 * ROWS, INNER, 0, w)];
        } else {
            y[e] = bad;
            note(status, row, v);
        }
    }
}
#endif

// The key of a bad index.
#define BAD (~(K)0)

#ifdef KEYS
// Where in y each row of the index points: its key.
// Rows of the index `padding` count as bad, but are not noted.
KERNEL(keys)(GLOBAL const SI *index, GLOBAL K *keys, Ints p, i64 rows, i64 along, i64 extent, i64 padding,
             GLOBAL i64 *status) {
    for (i64 row = GROUP * THREADS + LANE; row < rows; row += GROUPS * THREADS) {
        i64 v = index[walk(p, 0, ROWS, 0, (idx)row)];
        int is_bad = (u64)v >= (u64)extent;
        if (is_bad) note(status, row, v);
        keys[row] = is_bad || v == padding ? BAD : (K)(walk(p, 0, ROWS, 1, (idx)row) + (idx)v * (idx)along);
    }
}
#endif

#ifdef SCATTER
// VECTOR elements of dtype T.
typedef STORAGE(T) S;
typedef union {
    WORD all;
    S each[VECTOR];
} Word;

#define EACH_PART(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)

#ifdef ADDING
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

FUNCTION Sum sum_of(Word w) {
    Sum sum;
    EACH_PART(j) sum.v[j] = (A)LOAD(T, w.each, j);
    return sum;
}

FUNCTION Sum load(GLOBAL const S *x, idx word) {
    Word w;
    w.all = ((GLOBAL const WORD *)x)[word];
    return sum_of(w);
}

FUNCTION void store(GLOBAL S *y, idx word, Sum sum) {
    Word w;
    EACH_PART(j) STORE(T, w.each, j, sum.v[j]);
    ((GLOBAL WORD *)y)[word] = w.all;
}
#endif

#ifdef FEW
// For an index that is short along the indexed dimension, so that a thread can look at all rows that may point to one
// place: `count` of them, `apart` rows from each other. Strides along it are `index_step` and `source_step`. The first row
// of a place adds up all; of an assignment, the last one writes.
KERNEL(few)(GLOBAL const SI *index, GLOBAL const S *source, GLOBAL S *y, Ints p, i64 n, i64 width, i64 along, i64 extent,
            i64 count, i64 apart, i64 index_step, i64 source_step, GLOBAL i64 *status) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = (idx)e / (idx)width, w = (idx)e % (idx)width;
        int own = (int)(row / (idx)apart % (idx)count), left = (int)count - own;
        GLOBAL const SI *at = index + walk(p, 0, ROWS, 0, row);
        i64 v = *at;
        if ((u64)v >= (u64)extent) {
            note(status, row, v);
            continue;
        }
        int is_mine = 1;
#ifdef ADDING
        for (int i = 1; i <= own; i++) is_mine &= at[-i * (idx)index_step] != v;
#else
        for (int i = 1; i < left; i++) is_mine &= at[i * (idx)index_step] != v;
#endif
        if (!is_mine) continue;
        idx to = walk(p, 0, ROWS, 1, row) + (idx)v * (idx)along + walk(p, 4 * ROWS, INNER, 0, w);
        idx from = walk(p, 0, ROWS, 2, row) + walk(p, 4 * ROWS, INNER, 1, w);
#ifdef ADDING
        Sum sum = joined(load(y, to), load(source, from));
        for (int i = 1; i < left; i++)
            if (at[i * (idx)index_step] == v) sum = joined(sum, load(source, from + i * (idx)source_step));
        store(y, to, sum);
#else
        ((GLOBAL WORD *)y)[to] = ((GLOBAL const WORD *)source)[from];
#endif
    }
}
#else

// Below, rows are sorted by their keys, and `order` says which they were. Rows of one key are a segment. `p`: extents and
// strides of the source's rows, extents of INNER dimensions, their strides in y and the source.
#define TO(w) walk(p, 2 * ROWS, INNER, 0, w)
#define FROM(w) walk(p, 2 * ROWS, INNER, 1, w)
#define FROM_ROW(k) walk(p, 0, ROWS, 0, (idx)order[k])

#ifdef ADDING
// What sums are added to: with FRESH, y is all zeros.
#ifdef FRESH
#define BEFORE(y, at) zero()
#else
#define BEFORE(y, at) load(y, at)
#endif

#ifdef MEAN
// The first row whose key is not smaller.
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

// What y gets of a segment of `length` rows.
FUNCTION Sum result(Sum sum, idx length) {
    EACH_PART(j) sum.v[j] /= (A)length;
    return sum;
}
#else
#define LENGTH(keys, rows, key) 0
#define result(sum, length) (sum)
#endif

// Rows that are read before they are added, so that a thread does not wait for each.
#define AHEAD 4
#define EACH_AHEAD(i) _Pragma("unroll") for (int i = 0; i < AHEAD; i++)

// Sums of the segments in parts of `part` rows. A thread takes a word of all rows of a part. A segment that lies in one
// part is done; of one that goes on, the first part's sum is a tail, and the sums of the others are heads.
KERNEL(sums)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, GLOBAL Sum *heads,
             GLOBAL Sum *tails, Ints p, i64 rows, i64 width, i64 part) {
    i64 n = (rows + part - 1) / part * width;
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx w = (idx)(e % width), k = (idx)(e / width) * (idx)part, to = TO(w), from = FROM(w);
        idx end = k + (idx)part < (idx)rows ? k + (idx)part : (idx)rows;
        K key = keys[k];
        int is_head = k > 0 && keys[k - 1] == key;
        idx start = k;
        Sum sum = is_head || key == BAD ? zero() : BEFORE(y, (idx)key + to);
        for (; k < end; k += AHEAD) {
            Word read[AHEAD];
            EACH_AHEAD(i) if (k + i < end && keys[k + i] != BAD)
                read[i].all = ((GLOBAL const WORD *)source)[FROM_ROW(k + i) + from];
            EACH_AHEAD(i) if (k + i < end) {
                K next = keys[k + i];
                if (next != key) {
                    if (is_head)
                        heads[e] = sum;
                    else
                        store(y, (idx)key + to, result(sum, k + i - start));
                    is_head = 0;
                    key = next;
                    start = k + i;
                    sum = key == BAD ? zero() : BEFORE(y, (idx)key + to);
                }
                if (key != BAD) sum = joined(sum, sum_of(read[i]));
            }
        }
        if (is_head)
            heads[e] = sum;
        else if (end < (idx)rows && keys[end] == key)
            tails[e] = sum;
        else if (key != BAD)
            store(y, (idx)key + to, result(sum, end - start));
    }
}

// Tails and the heads that follow.
KERNEL(joins)(GLOBAL const K *keys, GLOBAL S *y, GLOBAL const Sum *heads, GLOBAL const Sum *tails, Ints p, i64 rows,
              i64 width, i64 part) {
    i64 n = (rows + part - 1) / part * width;
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx w = (idx)(e % width), first = (idx)(e / width) * (idx)part, k = first + (idx)part;
        if (k >= (idx)rows) continue;
        K key = keys[k];
        // Only the part in which a segment starts is its tail.
        if (key == BAD || keys[k - 1] != key || (first > 0 && keys[first - 1] == key)) continue;
        Sum sum = tails[e];
        i64 head = e;
        while (k < (idx)rows && keys[k] == key) {
            // Added in blocks, so that errors of long sums stay small.
            Sum block = zero();
            for (int i = 0; i < 64 && k < (idx)rows && keys[k] == key; i++, k += (idx)part) {
                head += width;
                block = joined(block, heads[head]);
            }
            sum = joined(sum, block);
        }
        store(y, (idx)key + TO(w), result(sum, LENGTH(keys, (idx)rows, key)));
    }
}
#else
// The last row of each segment is what y gets.
KERNEL(assign)(GLOBAL const K *keys, GLOBAL const idx *order, GLOBAL const S *source, GLOBAL S *y, Ints p, i64 rows,
               i64 width) {
    for (i64 e = GROUP * THREADS + LANE; e < rows * width; e += GROUPS * THREADS) {
        idx k = (idx)e / (idx)width, w = (idx)e % (idx)width;
        K key = keys[k];
        if (key == BAD || (k + 1 < (idx)rows && keys[k + 1] == key)) continue;
        ((GLOBAL WORD *)y)[(idx)key + TO(w)] = ((GLOBAL const WORD *)source)[FROM_ROW(k) + FROM(w)];
    }
}
#endif
#endif
#endif

// Gather and scatter. Trailing dimensions along which the index does not change are moved as a whole: a row of the index
// has `width` elements of x.
//
// `p`: extents of the index's rows, ROWS of them, their strides in the index and in x (or y), then the extents and strides
// of what lies at one row, INNER of them. Strides in x are in words of type S; POSITIONS: what is written are target
// positions for a sort.

typedef STORAGE(I) SI;

// Adds to `at` and `origin` where row `row` of the index lies, and where it points if its value is 0.
FUNCTION void place(Ints p, idx row, idx *at, idx *origin) {
#pragma unroll
    for (int d = ROWS - 1; d >= 0; d--) {
        idx c = d == 0 ? row : row % (idx)p.v[d];
        if (d > 0) row /= (idx)p.v[d];
        *at += c * (idx)p.v[ROWS + d];
        *origin += c * (idx)p.v[2 * ROWS + d];
    }
}

FUNCTION idx inner_position(Ints p, idx i) {
    idx at = 0;
#pragma unroll
    for (int d = INNER - 1; d >= 0; d--) {
        idx c = d == 0 ? i : i % (idx)p.v[3 * ROWS + d];
        if (d > 0) i /= (idx)p.v[3 * ROWS + d];
        at += c * (idx)p.v[3 * ROWS + INNER + d];
    }
    return at;
}

#ifdef GATHER
KERNEL(gather)(GLOBAL const S *x, GLOBAL const SI *index, GLOBAL S *y, Ints p, i64 n, i64 width, i64 along, i64 extent,
               S bad, GLOBAL i64 *status) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx row = (idx)(e / width), at = 0, origin = 0;
        place(p, row, &at, &origin);
        i64 v = LOAD(I, index, at);
        if ((u64)v < (u64)extent) {
            y[e] = x[origin + (idx)v * (idx)along + inner_position(p, (idx)(e % width))];
        } else {
            y[e] = bad;
            note(status, row, v);
        }
    }
}
#endif

#ifdef POSITIONS
// The key of a row is the position in y of its first element; that of a bad one is beyond all others.
KERNEL(positions)(GLOBAL const SI *index, GLOBAL u64 *keys, GLOBAL i32 *order, Ints p, i64 rows, i64 along, i64 extent,
                  GLOBAL i64 *status) {
    for (i64 row = GROUP * THREADS + LANE; row < rows; row += GROUPS * THREADS) {
        idx at = 0, origin = 0;
        place(p, (idx)row, &at, &origin);
        i64 v = LOAD(I, index, at);
        int is_bad = (u64)v >= (u64)extent;
        if (is_bad) note(status, row, v);
        keys[row] = is_bad ? ~(u64)0 : (u64)(origin + (idx)v * (idx)along);
        order[row] = (i32)row;
    }
}
#endif

#ifdef SCATTER
typedef struct {
    i64 v[SOURCE_INTS];
} Source;

// Rows that are sorted by where they point. The first row of a place does the work of all, in their order. `q`: extents
// and strides of the source.
FUNCTION idx source_position(Source q, idx e) {
    idx at = 0;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; d--) {
        idx c = d == 0 ? e : e % (idx)q.v[d];
        if (d > 0) e /= (idx)q.v[d];
        at += c * (idx)q.v[DIMS + d];
    }
    return at;
}

KERNEL(scatter)(GLOBAL const u64 *keys, GLOBAL const i32 *order, GLOBAL const STORAGE(T) *source, GLOBAL STORAGE(T) *y,
                Ints p, Source q, i64 rows, i64 width) {
    for (i64 e = GROUP * THREADS + LANE; e < rows * width; e += GROUPS * THREADS) {
        idx k = (idx)(e / width), i = (idx)(e % width);
        u64 key = keys[k];
        if (key == ~(u64)0 || (k > 0 && keys[k - 1] == key)) continue;
        idx to = (idx)key + inner_position(p, i);
#ifdef ADDING
        A sum = (A)LOAD(T, y, to);
        for (idx j = k; j < (idx)rows && keys[j] == key; j++)
            sum = ADD(sum, (A)LOAD(T, source, source_position(q, (idx)order[j] * (idx)width + i)));
        STORE(T, y, to, sum);
#else
        idx last = k;
        while (last + 1 < (idx)rows && keys[last + 1] == key) last++;
        y[to] = source[source_position(q, (idx)order[last] * (idx)width + i)];
#endif
    }
}
#endif

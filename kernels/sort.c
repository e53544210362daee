// Stable sorting of rows of 64-bit keys with their positions: runs of sorted keys are merged until one is left.
//
// X: dtype of x. `p`: DIMS extents and strides of x.

#ifdef KEYS
// A key that is larger for larger values and alike for equal ones; NaN has the largest.
FUNCTION u64 key_of(A v) {
#ifdef INTEGER
    return (u64)v ^ ((u64)1 << 63);
#else
    if (v != v) return ~(u64)0;
    v = v == 0 ? 0 : v;
#ifdef NEEDS_F64
    union {
        f64 value;
        u64 bits;
    } u;
    u.value = v;
    return u.bits >> 63 ? ~u.bits : u.bits | ((u64)1 << 63);
#else
    u32 bits = as_u32(v);
    return bits >> 31 ? (u64)~bits : (u64)(bits | 0x80000000u);
#endif
#endif
}

FUNCTION idx position_of(Ints p, idx e) {
    idx at = 0;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; d--) {
        idx c = d == 0 ? e : e % (idx)p.v[d];
        if (d > 0) e /= (idx)p.v[d];
        at += c * (idx)p.v[DIMS + d];
    }
    return at;
}

KERNEL(keys)(GLOBAL const STORAGE(X) *x, GLOBAL u64 *keys, GLOBAL i32 *order, Ints p, i64 n, i64 length,
             i64 is_descending) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        u64 key = key_of((A)LOAD(X, x, position_of(p, (idx)e)));
        keys[e] = is_descending ? ~key : key;
        order[e] = (i32)(e % length);
    }
}

KERNEL(values)(GLOBAL const STORAGE(X) *x, GLOBAL const i32 *order, GLOBAL STORAGE(X) *y, GLOBAL i64 *positions, Ints p,
               i64 n, i64 length) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        idx from = (idx)(e - e % length) + order[e];
        y[e] = x[position_of(p, from)];
        positions[e] = order[e];
    }
}
#else

// Merges neighbouring runs of `run` keys. An element's new place is its place in its own run, and how many of the other
// run come before it: of equal keys the left ones do.
KERNEL(merge)(GLOBAL const u64 *keys, GLOBAL const i32 *order, GLOBAL u64 *merged, GLOBAL i32 *merged_order, i64 n,
              i64 length, i64 run) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        i64 row = e - e % length, i = e % length, pair = i - i % (2 * run);
        i64 middle = pair + run < length ? pair + run : length, end = pair + 2 * run < length ? pair + 2 * run : length;
        int is_left = i < middle;
        i64 low = is_left ? middle : pair, high = is_left ? end : middle, start = low;
        u64 key = keys[e];
        while (low < high) {
            i64 at = low + (high - low) / 2;
            u64 other = keys[row + at];
            if (is_left ? other < key : other <= key)
                low = at + 1;
            else
                high = at;
        }
        i64 to = row + pair + (i - (is_left ? pair : middle)) + (low - start);
        merged[to] = key;
        merged_order[to] = order[e];
    }
}
#endif

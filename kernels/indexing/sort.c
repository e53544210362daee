// Stable sorting of rows of `length` elements by keys of type K. Every step is a merge, which keeps the order of equal keys.
//
// A group sorts or merges TILE elements.
//
// THREADS: power of 2, threads of a group
// ITEMS: power of 2, elements of a thread
// K: u32 or u64, type of the keys
// X: u8 .. u64, storage type of x; without X, keys are merged
// SIGN: with X, the sign bit in the bits of an element; 0 for unsigned ones
// INFINITE: with X, the bits of infinity; not defined for integers
// DIMS, X_EXTENT, X_STRIDE: with X, number of dimensions of x, their extents and strides
// WHOLE: flag, tiles finishes rows and writes values; otherwise it writes keys and order
// PACKED: flag, keys of 16 bits, with positions in rows as their lower half
// WIDE: flag, positions have 64 bits

#define TILE (THREADS * ITEMS)

#ifdef PACKED
#define UNLESS_PACKED(...)
#else
#define UNLESS_PACKED(...) __VA_ARGS__
#endif

// Sorts the elements of one thread.
FUNCTION void sort_items(K *keys UNLESS_PACKED(, u16 *from)) {
#pragma unroll
    for (int turn = 0; turn < ITEMS; turn++) {
#pragma unroll
        for (int i = turn % 2; i + 1 < ITEMS; i += 2) {
            int is_wrong = keys[i] > keys[i + 1];
            K low = is_wrong ? keys[i + 1] : keys[i], high = is_wrong ? keys[i] : keys[i + 1];
            keys[i] = low, keys[i + 1] = high;
#ifndef PACKED
            u16 first = is_wrong ? from[i + 1] : from[i], second = is_wrong ? from[i] : from[i + 1];
            from[i] = first, from[i + 1] = second;
#endif
        }
    }
}

// The number of elements of a among the first `diagonal` merged elements. Of equal elements, those of a come first. Green et al.
// 2012, "GPU Merge Path".
#define SPLIT(name, SPACE, I)                                                           \
    LOCAL_FUNCTION I name(SPACE const K *a, I na, SPACE const K *b, I nb, I diagonal) { \
        I low = diagonal > nb ? diagonal - nb : 0;                                      \
        I high = diagonal < na ? diagonal : na;                                         \
        while (low < high) {                                                            \
            I at = low + (high - low) / 2;                                              \
            if (a[at] <= b[diagonal - 1 - at])                                          \
                low = at + 1;                                                           \
            else                                                                        \
                high = at;                                                              \
        }                                                                               \
        return low;                                                                     \
    }
SPLIT(split_local, LOCAL, int)
SPLIT(split_global, GLOBAL, idx)

// ITEMS elements from `diagonal` on of the merged runs keys[a .. a_end] and keys[b .. b_end], and their positions before.
LOCAL_FUNCTION void merge_items(LOCAL const K *keys, int a, int a_end, int b, int b_end, int diagonal, K *to, int *at) {
    int of_a = split_local(keys + a, a_end - a, keys + b, b_end - b, diagonal);
    a += of_a;
    b += diagonal - of_a;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        int is_a = b >= b_end || (a < a_end && keys[a] <= keys[b]);
        at[i] = is_a ? a : b;
        // Past the end of both runs the key is not used, but its position must be valid.
        if (at[i] >= b_end) at[i] = b_end - 1;
        to[i] = keys[at[i]];
        a += is_a;
        b += !is_a;
    }
}

#ifdef X
typedef STORAGE(X) S;

// A key that is larger for larger values and equal for equal ones. NaN has the largest key.
FUNCTION K key_of(S v) {
    K bits = (K)v;
#ifdef INFINITE
    K magnitude = bits & (K)(SIGN - 1);
    if (magnitude > (K)INFINITE) return ~(K)0;
    return (bits & (K)SIGN) ? (K)SIGN - magnitude : (K)SIGN + magnitude;
#else
    return bits ^ (K)SIGN;
#endif
}

FUNCTION idx position_of(Ints p, idx e) {
    idx at = 0;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; d--) {
        idx c = d == 0 ? e : e % X_EXTENT(d);
        if (d > 0) e /= X_EXTENT(d);
        at += c * X_STRIDE(d);
    }
    return at;
}

// The element of a key. NaN and zeros have several representations with the same key; they are read from `at` in x.
FUNCTION S value_of(K key, i64 is_descending, GLOBAL const S *x, Ints p, idx at) {
    if (is_descending) key = ~key;
#ifdef PACKED
    key >>= 16;
#endif
#ifdef INFINITE
    int is_negative = key < (K)SIGN;
    K magnitude = is_negative ? (K)SIGN - key : key - (K)SIGN;
    if (magnitude == 0 || magnitude > (K)INFINITE) return x[position_of(p, at)];
    return (S)(is_negative ? magnitude | (K)SIGN : magnitude);
#else
    return (S)(key ^ SIGN);
#endif
}

// Sorts spans of `span` elements, a power of 2 from ITEMS to TILE: whole rows, or parts of rows if `span` is TILE.
KERNEL(tiles)(
    GLOBAL const S *x, Ints p, i64 is_descending,
#ifdef WHOLE
    GLOBAL S *y, GLOBAL i64 *order,
#else
    GLOBAL K *y, UNLESS_PACKED(GLOBAL idx *order, )
#endif
    i64 rows, i64 length, i64 span) {
    SHARED(K, keys, TILE);
    K own[ITEMS];
#ifndef PACKED
    SHARED(u16, from, TILE);
    u16 own_from[ITEMS];
#endif
    int at[ITEMS];
    idx parts = (idx)((length + span - 1) / span);
    i64 spans = rows * parts, in_tile = TILE / span, tiles = (spans + in_tile - 1) / in_tile;
    for (i64 tile = GROUP; tile < tiles; tile += GROUPS) {
        BARRIER();
        for (int j = LANE; j < TILE; j += THREADS) {
            idx s = (idx)(tile * in_tile) + j / (int)span, row = s / parts, i = s % parts * (idx)span + j % (int)span;
            // Padding of a span follows its elements, and sorts behind them.
            K key = ~(K)0;
            if (s < spans && i < length) {
                key = key_of(x[position_of(p, row * (idx)length + i)]);
                if (is_descending) key = ~key;
#ifdef PACKED
                key = key << 16 | (K)i;
#endif
            }
            keys[j] = key;
        }
        BARRIER();
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            UNLESS_PACKED(own_from[i] = (u16)(LANE * ITEMS + i);)
            own[i] = keys[LANE * ITEMS + i];
        }
        sort_items(own UNLESS_PACKED(, own_from));
        for (int run = ITEMS;; run *= 2) {
            BARRIER();
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                keys[LANE * ITEMS + i] = own[i];
                UNLESS_PACKED(from[LANE * ITEMS + i] = own_from[i];)
            }
            BARRIER();
            if (run >= span) break;
            int pair = LANE * ITEMS / (2 * run) * (2 * run), middle = pair + run;
            merge_items(keys, pair, middle, middle, middle + run, LANE * ITEMS - pair, own, at);
#ifndef PACKED
#pragma unroll
            for (int i = 0; i < ITEMS; i++) own_from[i] = from[at[i]];
#endif
        }
        for (int j = LANE; j < TILE; j += THREADS) {
            idx s = (idx)(tile * in_tile) + j / (int)span, row = s / parts, part = s % parts * (idx)span;
            idx i = part + j % (int)span, to = row * (idx)length + i;
            if (s >= spans || i >= length) continue;
#ifdef PACKED
            idx was = keys[j] & 0xffff;
#else
            idx was = part + from[j] % (int)span;
#endif
#ifdef WHOLE
            y[to] = value_of(keys[j], is_descending, x, p, row * (idx)length + was);
            order[to] = was;
#else
            y[to] = keys[j];
            UNLESS_PACKED(order[to] = was;)
#endif
        }
    }
}
#endif

// Merges pairs of adjacent sorted runs of `run` elements, a multiple of TILE.
KERNEL(merge)(GLOBAL const K *keys, GLOBAL K *merged,
              UNLESS_PACKED(GLOBAL const idx *order, GLOBAL idx *merged_order, ) i64 rows, i64 length, i64 run) {
    SHARED(K, tile_keys, TILE);
    UNLESS_PACKED(SHARED(u16, from, TILE);)
    SHARED(idx, splits, 2);
    K own[ITEMS];
    int at[ITEMS];
    idx parts = (idx)((length + TILE - 1) / TILE);
    for (i64 tile = GROUP; tile < rows * parts; tile += GROUPS) {
        idx row = (idx)tile / parts, start = (idx)tile % parts * TILE, pair = start / (idx)(2 * run) * (idx)(2 * run);
        idx left = (idx)length - pair, na = left < (idx)run ? left : (idx)run, nb = left - na;
        if (nb > (idx)run) nb = (idx)run;
        idx first = start - pair, end = first + TILE < na + nb ? first + TILE : na + nb;
        int count = (int)(end - first);
        GLOBAL const K *a = keys + row * (idx)length + pair;
        UNLESS_PACKED(GLOBAL const idx *a_order = order + row * (idx)length + pair;)
        BARRIER();
        for (int i = LANE; i < 2; i += THREADS) splits[i] = split_global(a, na, a + na, nb, i == 0 ? first : end);
        BARRIER();
        idx from_a = splits[0], from_b = na + first - from_a;
        int of_a = (int)(splits[1] - from_a);
        for (int j = LANE; j < count; j += THREADS) tile_keys[j] = a[j < of_a ? from_a + j : from_b + (j - of_a)];
        BARRIER();
        int diagonal = LANE * ITEMS < count ? LANE * ITEMS : count;
        merge_items(tile_keys, 0, of_a, of_a, count, diagonal, own, at);
        BARRIER();
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            tile_keys[LANE * ITEMS + i] = own[i];
            UNLESS_PACKED(from[LANE * ITEMS + i] = (u16)at[i];)
        }
        BARRIER();
        for (int j = LANE; j < count; j += THREADS) {
            idx to = row * (idx)length + start + j;
            merged[to] = tile_keys[j];
#ifndef PACKED
            int was = from[j];
            merged_order[to] = a_order[was < of_a ? from_a + was : from_b + (was - of_a)];
#endif
        }
    }
}

#if defined(X) && !defined(WHOLE)
// The sorted values and their original positions.
KERNEL(values)(GLOBAL const S *x, Ints p, i64 is_descending, GLOBAL const K *keys, UNLESS_PACKED(GLOBAL const idx *order, )
               GLOBAL S *y, GLOBAL i64 *positions, i64 n, i64 length) {
    for (i64 e = GROUP * THREADS + LANE; e < n; e += GROUPS * THREADS) {
        K key = keys[e];
#ifdef PACKED
        idx was = key & 0xffff;
#else
        idx was = order[e];
#endif
        y[e] = value_of(key, is_descending, x, p, (idx)e / (idx)length * (idx)length + was);
        positions[e] = was;
    }
}
#endif

// Philox 4x32-10 and its distributions, with the same bits on every device. A thread makes one block of four draws.
//
// A product is added only by fma_, or is exact. A compiler that contracts products and sums therefore changes nothing.
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of y
// ACC: with DROPOUT, dtype of the arithmetic
// UNIFORM: flag, uniform draws; arguments a, b, c: lower end, width, largest value
// NORMAL: flag, normal draws; arguments a, b: mean, deviation
// BERNOULLI: flag, 0 or 1
// DROPOUT: flag, x times a random mask
// BIASED: flag, with DROPOUT, a bias of `width` channels is added to x first; WHOLE: flag, words of the bias are read as WORD
// SUMMED: flag, with DROPOUT, the sums of the results over rows are computed too; rows have whole words
// COLUMNS: power of 2, with SUMMED, threads along a row
// WORD: type of four elements, or with DROPOUT of 16 bytes; not defined unless all operands are aligned to it
// BASE: flag, numbers in memory are added to the generator's state
// NEEDS_F64: flag, y is f64

CONTRACT_OFF

#include "random/philox.h"

typedef STORAGE(T) S;

#ifdef DROPOUT
// y = x m scale, where m is 1 for draws below the threshold, else 0. A thread takes as many blocks as its words have elements for.
#define ITEMS (sizeof(S) == 2 ? 8 : 4)

typedef union {
#ifdef WORD
    WORD all[ITEMS * sizeof(S) / 16];
#endif
    S each[ITEMS];
} Items;

// `count` elements from `first` on. The others are the first one.
FUNCTION void read_items(Items *items, GLOBAL const S *x, i64 first, int count) {
#ifdef WORD
    if (count == ITEMS) {
#pragma unroll
        for (int i = 0; i < ITEMS * (int)sizeof(S) / 16; i++) items->all[i] = ((GLOBAL const WORD *)(x + first))[i];
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < ITEMS; i++) items->each[i] = x[first + (i < count ? i : 0)];
}

FUNCTION void write_items(GLOBAL S *y, const Items *items, i64 first, int count) {
#ifdef WORD
    if (count == ITEMS) {
#pragma unroll
        for (int i = 0; i < ITEMS * (int)sizeof(S) / 16; i++) ((GLOBAL WORD *)(y + first))[i] = items->all[i];
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < ITEMS; i++)
        if (i < count) y[first + i] = items->each[i];
}

// The factors of a thread's elements: block `k` of the mask.
FUNCTION void factors_of(A *factors, GLOBAL const i64 *base, u64 k, i64 seed, i64 offset, i64 stream, i64 threshold,
                         A scale) {
    u32 last = (u32)(threshold - 1);
    if (threshold == 0) scale = 0;
#pragma unroll
    for (int block = 0; block < ITEMS / 4; block++) {
        Draws draws = draws_of(base, (u64)offset + k * (ITEMS / 4) + block, seed, stream);
#pragma unroll
        for (int i = 0; i < 4; i++) factors[block * 4 + i] = draws.v[i] <= last ? scale : (A)0;
    }
}

#ifdef SUMMED
#define LINES (THREADS / COLUMNS)
#define LINE (LANE / COLUMNS)

// y = x m scale for rows of `width` elements, and the part of a group's rows in the sums of columns: sums [GROUPS_Y, width].
KERNEL(dropout_sum)(GLOBAL const S *x, GLOBAL S *y, GLOBAL A *sums, GLOBAL const i64 *base, i64 rows, i64 width, i64 seed,
                    i64 offset, i64 stream, i64 threshold, A scale) {
    SHARED(A, shared, THREADS * ITEMS);
    A own[ITEMS], factors[ITEMS];
    i64 column = (GROUP * COLUMNS + LANE % COLUMNS) * ITEMS;
    int is_inside = column < width;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) own[i] = 0;
    for (i64 row = GROUP_Y * LINES + LINE; is_inside && row < rows; row += GROUPS_Y * LINES) {
        i64 first = row * width + column;
        Items items;
        read_items(&items, x, first, ITEMS);
        factors_of(factors, base, (u64)(first / ITEMS), seed, offset, stream, threshold, scale);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            A v = LOAD(T, items.each, i) * factors[i];
            own[i] += v;
            STORE(T, items.each, i, v);
        }
        write_items(y, &items, first, ITEMS);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) shared[i * THREADS + LANE] = own[i];
    for (int below = LINES / 2; below > 0; below /= 2) {
        BARRIER();
        if (LINE < below) {
            for (int i = 0; i < ITEMS; i++) shared[i * THREADS + LANE] += shared[i * THREADS + LANE + below * COLUMNS];
        }
    }
    if (LINE > 0 || !is_inside) return;
    for (int i = 0; i < ITEMS; i++) sums[GROUP_Y * width + column + i] = shared[i * THREADS + LANE];
}

#else
#ifdef BIASED
#define BIAS GLOBAL const S *bias, i64 width,

FUNCTION void add_bias(A *v, GLOBAL const S *bias, i64 width, i64 first) {
    idx column = (idx)first % (idx)width;
#ifdef WHOLE
    Items items;
    read_items(&items, bias, column, ITEMS);
#pragma unroll
    for (int i = 0; i < ITEMS; i++) v[i] += LOAD(T, items.each, i);
#else
    for (int i = 0; i < ITEMS; i++) {
        v[i] += LOAD(T, bias, column);
        column = column + 1 < (idx)width ? column + 1 : 0;
    }
#endif
}
#else
#define BIAS
#endif

KERNEL(dropout)(GLOBAL const S *x, GLOBAL S *y, GLOBAL const i64 *base, BIAS i64 n, i64 seed, i64 offset, i64 stream,
                i64 threshold, A scale) {
    for (i64 k = GROUP * THREADS + LANE; k * ITEMS < n; k += GROUPS * THREADS) {
        i64 first = k * ITEMS;
        int count = n - first < ITEMS ? (int)(n - first) : ITEMS;
        Items items;
        A v[ITEMS], factors[ITEMS];
        read_items(&items, x, first, count);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) v[i] = LOAD(T, items.each, i);
#ifdef BIASED
        add_bias(v, bias, width, first);
#endif
        factors_of(factors, base, (u64)k, seed, offset, stream, threshold, scale);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) STORE(T, items.each, i, v[i] * factors[i]);
        write_items(y, &items, first, count);
    }
}
#endif

#else
typedef struct {
    f32 a, b;
} Pair;

// Two normal draws, in operations that round alike on every device.
FUNCTION Pair normal2(u32 a, u32 b) {
    u64 n = (u64)a + 1;
    int exponent = 63 - leading_zeros_u64(n);
    f32 m = as_f32(0x3f800000u | ((u32)((n << (63 - exponent)) >> 40) & 0x7fffffu));
    if (as_u32(m) > 0x3fb504f3u) {
        m = m * 0.5f;
        exponent += 1;
    }
    f32 k = (f32)(exponent - 32), f = m - 1.0f, z = f * f;
    f32 p = 7.0376836292e-2f;
    p = fma_(p, f, -1.1514610310e-1f);
    p = fma_(p, f, 1.1676998740e-1f);
    p = fma_(p, f, -1.2420140846e-1f);
    p = fma_(p, f, 1.4249322787e-1f);
    p = fma_(p, f, -1.6668057665e-1f);
    p = fma_(p, f, 2.0000714765e-1f);
    p = fma_(p, f, -2.4999993993e-1f);
    p = fma_(p, f, 3.3333331174e-1f);
    f32 fz = f * z;
    f32 y = fz * p;
    y = fma_(k, -2.12194440e-4f, y);
    y = fma_(-0.5f, z, y);
    f32 r = f + y;
    r = fma_(k, 0.693359375f, r);
    f32 l = r < 0.0f ? -2.0f * r : 0.0f, root = 0.0f;
    if (l > 0.0f) {
        f32 h = 0.5f * l, q = as_f32(0x5f3759dfu - (as_u32(l) >> 1));
        for (int i = 0; i < 3; i++) {
            f32 hq = h * q;
            q = q * fma_(-hq, q, 1.5f);
        }
        f32 s = l * q, half_q = 0.5f * q;
        root = fma_(fma_(-s, s, l), half_q, s);
    }
    int t = (int)((b & 0x3fffffffu) >> 6) - (1 << 23);
    f32 x = (f32)t * as_f32(0x33c90fdbu), w = x * x, xw = x * w, ww = w * w;
    f32 sine = fma_(-1.9515295891e-4f, w, 8.3321608736e-3f);
    sine = fma_(sine, w, -1.6666654611e-1f);
    sine = fma_(xw, sine, x);
    f32 cosine = fma_(2.443315711809948e-5f, w, -1.388731625493765e-3f);
    cosine = fma_(cosine, w, 4.166664568298827e-2f);
    cosine = fma_(ww, cosine, fma_(-0.5f, w, 1.0f));
    u32 quarter = b >> 30;
    f32 c = quarter == 0 ? cosine : quarter == 1 ? -sine : quarter == 2 ? -cosine : sine;
    f32 d = quarter == 0 ? sine : quarter == 1 ? cosine : quarter == 2 ? -sine : -cosine;
    Pair pair;
    pair.a = root * c;
    pair.b = root * d;
    return pair;
}

KERNEL(draw)(GLOBAL S *y, GLOBAL const i64 *base, i64 n, i64 seed, i64 offset, i64 stream, i64 threshold, f32 a, f32 b,
             f32 c) {
    for (i64 block = GROUP * THREADS + LANE; block * 4 < n; block += GROUPS * THREADS) {
        Draws draws = draws_of(base, (u64)offset + (u64)block, seed, stream);
#ifdef NORMAL
        Pair first = normal2(draws.v[0], draws.v[1]), second = normal2(draws.v[2], draws.v[3]);
        f32 v[4];
        v[0] = fma_(b, first.a, a);
        v[1] = fma_(b, first.b, a);
        v[2] = fma_(b, second.a, a);
        v[3] = fma_(b, second.b, a);
#elif defined(UNIFORM)
        f32 v[4];
        for (int i = 0; i < 4; i++) {
            f32 u = (f32)(draws.v[i] >> 8) * as_f32(0x33800000u);
            v[i] = fma_(b, u, a);
            if (v[i] > c) v[i] = c;
        }
#else
        u8 v[4];
        for (int i = 0; i < 4; i++) v[i] = (u64)draws.v[i] < (u64)threshold;
#endif
#ifdef WORD
        if (block * 4 + 4 <= n) {
            union {
                WORD all;
                S each[4];
            } four;
#pragma unroll
            for (int i = 0; i < 4; i++) STORE(T, four.each, i, v[i]);
            ((GLOBAL WORD *)y)[block] = four.all;
            continue;
        }
#endif
        for (int i = 0; i < 4; i++)
            if (block * 4 + i < n) STORE(T, y, block * 4 + i, v[i]);
    }
}
#endif

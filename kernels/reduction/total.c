// A reduction of all elements of many tensors to one number, in two launches: of the elements of each chunk, then of the chunks.
// `totals` joins the chunks of another kernel.
//
// THREADS: 1 .. 1024, threads of a group
// T: dtype of the tensors
// ACC: f32 or f64, dtype of the arithmetic
// TERM: TERM_SQUARE, TERM_ABS or TERM_NOT_FINITE, function of an element
// JOIN_MAX: flag, the maximum; otherwise the sum
// FINISH_NORM: flag, the root of the sum of squares
// OPERANDS: 1, operands of a tensor in the table
// VECTOR: 1 .. 16, elements of a word
// WORD: u32x4, type of a word
// NEEDS_F64: flag, the arithmetic is f64
// WIDE: flag, positions have 64 bits

#if defined(JOIN_MAX)
#define KIND JOIN_TO_MAX
#elif defined(FINISH_NORM)
#define KIND JOIN_TO_SQUARES
#else
#define KIND JOIN_TO_SUM
#endif

#ifdef FINISH_NORM
#define FINISHED(v) root_of(v)
#else
#define FINISHED(v) (v)
#endif

#define TERM_SQUARE(v) ((v) * (v))
#define TERM_ABS(v) fabs_(v)
#define TERM_NOT_FINITE(v) ((v) * 0 != 0 ? 1 : 0)

typedef STORAGE(T) S;

typedef union {
    WORD all;
    S each[VECTOR];
} Read;

// NaN is the largest.
FUNCTION A joined(A a, A b) {
#if defined(JOIN_MAX)
    return b > a || b != b ? b : a;
#elif defined(FINISH_NORM)
    return joined_squares(a, b);
#else
    return a + b;
#endif
}

#ifdef FINISH_NORM
#define ADDED(a, b) ((a) + (b))
#define MARK(v) marks |= MARK_OF(v)
#else
#define ADDED joined
#define MARK(v) ((void)0)
#endif

KERNEL(total_parts)(GLOBAL const i64 *table, i64 tensors, i64 size, GLOBAL A *parts) {
    LET_NEXT_START();
    JOINS(1);
    for (i64 chunk = GROUP; chunk < CHUNKS(table, tensors); chunk += GROUPS) {
        CHUNK_OF(table, tensors, chunk, size);
        GLOBAL const S *x = POINTER(const S, entry[0]);
        A acc[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; j++) acc[j] = 0;
#ifdef FINISH_NORM
        u32 marks = 0;
#endif
        EACH_WHOLE(g) {
            Read w;
            w.all = *(GLOBAL const WORD *)(x + g * VECTOR);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                A v = LOAD(T, w.each, j);
                MARK(v);
                acc[j] = ADDED(acc[j], TERM(v));
            }
        }
        EACH_OTHER(g) {
            A v = LOAD(T, x, g);
            MARK(v);
            acc[0] = ADDED(acc[0], TERM(v));
        }
#pragma unroll
        for (int below = VECTOR / 2; below > 0; below /= 2) {
#pragma unroll
            for (int j = 0; j < below; j++) acc[j] = ADDED(acc[j], acc[j + below]);
        }
#ifdef FINISH_NORM
        if (!HAS_SQUARES(acc[0]) && marks != 0) {
            Root r = NO_ROOT;
            EACH_WHOLE(g) for (int j = 0; j < VECTOR; j++) add_to_root(&r, (A)LOAD(T, x, g * VECTOR + j));
            EACH_OTHER(g) add_to_root(&r, (A)LOAD(T, x, g));
            acc[0] = negative_root(r);
        }
#endif
        A all = team_join_one(acc[0], SIDE(1), KIND);
        if (LANE == 0) parts[chunk] = all;
    }
}

// Takes one group.
KERNEL(total)(GLOBAL const A *parts, i64 count, GLOBAL A *y) {
    AWAIT_PREVIOUS();
    JOINS(1);
    A acc = 0;
    for (i64 i = LANE; i < count; i += THREADS) acc = joined(acc, parts[i]);
    acc = team_join_one(acc, SIDE(1), KIND);
    if (LANE == 0) y[0] = FINISHED(acc);
}

// Divides all elements of many tensors by `scale`. Sets `found`, an f32, to 1 if one of them is not finite.
KERNEL(unscale)(GLOBAL const i64 *table, i64 tensors, i64 size, GLOBAL const f32 *scale, GLOBAL u32 *found) {
    const u32 one = 0x3f800000;
    A inverse = 1 / scale[0];
    int is_bad = 0;
    for (i64 chunk = GROUP; chunk < CHUNKS(table, tensors); chunk += GROUPS) {
        CHUNK_OF(table, tensors, chunk, size);
        GLOBAL S *x = POINTER(S, entry[0]);
        EACH_WHOLE(g) {
            Read w;
            w.all = *(GLOBAL const WORD *)(x + g * VECTOR);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                A v = LOAD(T, w.each, j);
                is_bad |= TERM_NOT_FINITE(v);
                STORE(T, w.each, j, v * inverse);
            }
            *(GLOBAL WORD *)(x + g * VECTOR) = w.all;
        }
        EACH_OTHER(g) {
            A v = LOAD(T, x, g);
            is_bad |= TERM_NOT_FINITE(v);
            STORE(T, x, g, v * inverse);
        }
    }
    if (is_bad) raise_to(found, one);
}

// For each tensor of a table, and each of the `kinds` of values of its chunks in `parts` [chunks, kinds]: their total over
// `divisor`. y: [tensors, kinds], of dtype T. A group computes one of them.
KERNEL(totals)(GLOBAL const i64 *table, i64 tensors, i64 size, GLOBAL const A *parts, i64 kinds, A divisor, GLOBAL S *y) {
    AWAIT_PREVIOUS();
    JOINS(1);
    for (i64 i = GROUP; i < tensors * kinds; i += GROUPS) {
        i64 tensor = i / kinds;
        A acc = 0;
        for (i64 chunk = table[tensor] + LANE; chunk < table[tensor + 1]; chunk += THREADS)
            acc = joined(acc, parts[chunk * kinds + i % kinds]);
        acc = team_join_one(acc, SIDE(1), KIND);
        if (LANE == 0) STORE(T, y, i, FINISHED(acc) / divisor);
    }
}

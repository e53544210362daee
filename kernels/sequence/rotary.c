// Rotary position embedding: pairs among a row's first elements are rotated by the angle of the row's position; the others are
// copied. x is [B, H, T, D], strided except in the last dimension, and y is contiguous.
//
// A thread takes a unit of a row: a word of each half, or an INTERLEAVED word, which has both elements of its pairs. Units from
// TURNED on are copied.
//
// THREADS: 1 .. 1024, threads of a group
// T: f16, bf16, f32 or f64, dtype of x
// C: dtype of the tables cos and sin [P, MIDDLE]
// I: i32 or i64, dtype of the positions
// ACC: f32 or f64, dtype of the arithmetic
// INTERLEAVED: flag, a pair is elements 2i and 2i + 1; otherwise i and i + MIDDLE
// POSITIONS: flag, rows of the tables are given by `positions`; otherwise they are positions in the sequence
// VECTOR: 1 .. 16, elements of a word
// WORD: u16 .. u32x4, type of a word
// ANGLES: 1 .. 16, angles of a word
// ANGLE_WORD, ANGLE_WORDS: type and number of words of ANGLES angles
// UNITS, LENGTH, ROW_WIDTH, TABLE_ROWS: units of a row, T, D and P
// HEADS, STRIDES: of each tensor, H, and the strides of B, H and T
// NEEDS_F64: flag, x is f64
// WIDE: flag, positions have 64 bits

typedef STORAGE(T) S;
typedef STORAGE(C) SC;
typedef STORAGE(I) SI;
typedef union {
    WORD all;
    S each[VECTOR];
} Word;
typedef union {
    ANGLE_WORD all[ANGLE_WORDS];
    SC each[ANGLES];
} Angles;

// y1 = x1 cos - direction x2 sin, y2 = x2 cos + direction x1 sin. The roundings do not depend on the length of words.
#define TURN(first, second, c, s) \
    A x1 = (A)LOAD(T, &(first), 0), x2 = (A)LOAD(T, &(second), 0); \
    STORE(T, &(first), 0, fma_(x1, c, -(x2 * (s)))); \
    STORE(T, &(second), 0, fma_(x2, c, x1 * (s)))

// Two tensors in one launch: threads below `n_first` take x, the others z. `positions` has an element for each position of the
// sequence, or of each sequence of the batch if OF_BATCH is not 0.
KERNEL(rotary)(GLOBAL const S *x, GLOBAL const S *z, GLOBAL const SC *cosines, GLOBAL const SC *sines, GLOBAL const SI *positions,
               GLOBAL S *y_of_x, GLOBAL S *y_of_z, ARGUMENT(Ints) p, i64 n_first, i64 n, A direction, GLOBAL i64 *status) {
    for (i64 all = GROUP * THREADS + LANE; all < n; all += GROUPS * THREADS) {
        int k = all >= n_first;
        idx e = (idx)(k ? all - n_first : all), row = QUOTIENT(e, UNITS, BY_UNITS), u = e - row * UNITS;
        idx above = QUOTIENT(row, LENGTH, BY_LENGTH), t = row - above * LENGTH;
        idx b = QUOTIENT(above, HEADS(k), BY_HEADS(k)), h = above - b * HEADS(k);
        idx start = b * STRIDES(3 * k) + h * STRIDES(3 * k + 1) + t * STRIDES(3 * k + 2);
        GLOBAL const S *from = (k ? z : x) + start;
        GLOBAL S *to = (k ? y_of_z : y_of_x) + row * ROW_WIDTH;
        if (u >= TURNED) {
            idx at = 2 * MIDDLE + (u - TURNED) * VECTOR;
            *(GLOBAL WORD *)(to + at) = *(GLOBAL const WORD *)(from + at);
            continue;
        }
        Angles c, s;
        i64 position = t;
#ifdef POSITIONS
        i64 place = b * OF_BATCH + t;
        position = positions[place];
        int is_bad = (u64)position >= (u64)TABLE_ROWS;
        if (is_bad) {
            note(status, place, position);
            position = 0;
        }
#endif
        idx angle = (idx)position * MIDDLE + u * ANGLES;
        for (int i = 0; i < ANGLE_WORDS; i++) {
            c.all[i] = ((GLOBAL const ANGLE_WORD *)(cosines + angle))[i];
            s.all[i] = ((GLOBAL const ANGLE_WORD *)(sines + angle))[i];
        }
#if defined(INTERLEAVED) && VECTOR > 1
        Word v;
        v.all = ((GLOBAL const WORD *)from)[u];
        _Pragma("unroll") for (int i = 0; i < ANGLES; i++) {
            TURN(v.each[2 * i], v.each[2 * i + 1], (A)LOAD(C, c.each, i), direction * (A)LOAD(C, s.each, i));
        }
#ifdef POSITIONS
        if (is_bad) _Pragma("unroll") for (int i = 0; i < VECTOR; i++) STORE(T, v.each, i, as_f32(0x7fc00000));
#endif
        ((GLOBAL WORD *)to)[u] = v.all;
#else
#ifdef INTERLEAVED
        idx first = 2 * u, second = first + 1;
#else
        idx first = u * VECTOR, second = first + MIDDLE;
#endif
        Word v, w;
        v.all = *(GLOBAL const WORD *)(from + first);
        w.all = *(GLOBAL const WORD *)(from + second);
        _Pragma("unroll") for (int i = 0; i < VECTOR; i++) {
            TURN(v.each[i], w.each[i], (A)LOAD(C, c.each, i), direction * (A)LOAD(C, s.each, i));
        }
#ifdef POSITIONS
        if (is_bad) _Pragma("unroll") for (int i = 0; i < VECTOR; i++) {
            STORE(T, v.each, i, as_f32(0x7fc00000));
            STORE(T, w.each, i, as_f32(0x7fc00000));
        }
#endif
        *(GLOBAL WORD *)(to + first) = v.all;
        *(GLOBAL WORD *)(to + second) = w.all;
#endif
    }
}

// Shared by all kernels, in every dialect: storage types, loads and stores, arithmetic, rows, and reports of bad elements.

// A position, and one that is known not to be negative, of which quotients are faster.
#ifdef WIDE
typedef i64 idx;
typedef u64 uidx;
#define HIGHEST_IDX 0x7fffffffffffffff
#else
typedef i32 idx;
typedef u32 uidx;
#define HIGHEST_IDX 0x7fffffff
#endif

// n / d for n below 2^31. `by` is computed from d on the host: a factor, and in the upper bits a shift.
#ifdef WIDE
#define QUOTIENT(n, d, by) ((n) / (idx)(d))
#else
#define QUOTIENT(n, d, by) ((idx)(mul_hi_u32((u32)(n) << 1, by) >> (int)((by) >> 32)))
#endif

#ifdef INTS
typedef struct {
    i64 v[INTS];
} Ints;
#endif

// Storage types of the dtypes, and their types in registers.
typedef f32 S_f32;
typedef u16 S_f16;
typedef u16 S_bf16;
typedef i64 S_i64;
typedef i32 S_i32;
typedef u16 S_u16;
typedef u8 S_u8;
typedef u8 S_bool;
#ifdef NEEDS_F64
typedef f64 S_f64;
#endif

FUNCTION f32 bf16_to_f32(u16 h) { return as_f32((u32)h << 16); }

#ifndef HAS_BF16
// To nearest, ties to even; NaN stays NaN.
FUNCTION u16 f32_to_bf16(f32 v) {
    u32 bits = as_u32(v);
    if (v != v) return (u16)((bits >> 16) | 0x40);
    return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#endif

// Rounds a value to odd, before the final rounding to 16 bits, so that the result is rounded once.
#ifdef NEEDS_F64
FUNCTION f32 to_odd(f64 x) {
    f32 v = (f32)x;
    u32 bits = as_u32(v);
    if (x != x || (f64)v == x) return v;
    if (fabs_((f64)v) > fabs_(x)) bits -= 1;
    return as_f32(bits | 1);
}
#else
#define to_odd(x) ((f32)(x))
#endif

// An integer before the final rounding to 16 bits: its upper 24 bits. The lowest of them is set if a lower bit was set.
FUNCTION f32 integer_to_odd(i64 x) {
    u64 size = x < 0 ? 0 - (u64)x : (u64)x;
    int cut = 40 - leading_zeros_u64(size | 1);
    if (cut <= 0) return (f32)x;
    u32 bits = (u32)(size >> cut) | (size << (64 - cut) != 0);
    f32 v = (f32)bits * as_f32((u32)(127 + cut) << 23);
    return x < 0 ? -v : v;
}

#define LOAD_f32(p, i) ((p)[i])
#define LOAD_f16(p, i) f16_to_f32((p)[i])
#define LOAD_bf16(p, i) bf16_to_f32((p)[i])
#define LOAD_f64(p, i) ((p)[i])
#define LOAD_i64(p, i) ((p)[i])
#define LOAD_i32(p, i) ((p)[i])
#define LOAD_u16(p, i) ((p)[i])
#define LOAD_u8(p, i) ((p)[i])
#define LOAD_bool(p, i) ((p)[i])

#define STORE_f32(p, i, x) ((p)[i] = (f32)(x))
#define STORE_f16(p, i, x) ((p)[i] = f32_to_f16(to_odd(x)))
#define STORE_bf16(p, i, x) ((p)[i] = f32_to_bf16(to_odd(x)))
#define STORE_f64(p, i, x) ((p)[i] = (f64)(x))
#define STORE_i64(p, i, x) ((p)[i] = (i64)(x))
#define STORE_i32(p, i, x) ((p)[i] = (i32)(x))
#define STORE_u16(p, i, x) ((p)[i] = (u16)(x))
#define STORE_u8(p, i, x) ((p)[i] = (u8)(x))
#define STORE_bool(p, i, x) ((p)[i] = (u8)((x) != 0))

// A value rounded to a dtype, in a register: R_x is its type, KEEP_x stores it, which rounds nothing.
typedef f32 R_f16;
typedef f32 R_bf16;
typedef f32 R_f32;
typedef i64 R_i64;
typedef i32 R_i32;
typedef u8 R_u8;
typedef u8 R_bool;
#ifdef NEEDS_F64
typedef f64 R_f64;
#endif
#ifndef ROUND_bf16
#define ROUND_bf16(x) bf16_to_f32(f32_to_bf16(to_odd(x)))
#endif
#define ROUND_f16(x) f16_to_f32(f32_to_f16(to_odd(x)))
#define ROUND_f32(x) ((f32)(x))
#define ROUND_f64(x) ((f64)(x))
#define ROUND_i64(x) ((i64)(x))
#define ROUND_i32(x) ((i32)(x))
#define ROUND_u8(x) ((u8)(x))
#define ROUND_bool(x) ((u8)((x) != 0))
#define KEEP_bf16(p, i, x) ((p)[i] = (u16)(as_u32(x) >> 16))
#define KEEP_f16(p, i, x) ((p)[i] = f32_to_f16(x))
#define KEEP_f32(p, i, x) ((p)[i] = (x))
#define KEEP_f64(p, i, x) ((p)[i] = (x))
#define KEEP_i64(p, i, x) ((p)[i] = (x))
#define KEEP_i32(p, i, x) ((p)[i] = (x))
#define KEEP_u8(p, i, x) ((p)[i] = (x))
#define KEEP_bool(p, i, x) ((p)[i] = (x))

// The largest number that STORE writes as 0: half of the smallest one.
#define ROUNDED_TO_0_f16 2.98023224e-8f
#define ROUNDED_TO_0_bf16 4.59177481e-41f
#define ROUNDED_TO_0_f32 0
#define ROUNDED_TO_0_f64 0

// A barrier of a wave's threads. A dialect may define a cheaper one.
#ifndef WAVE_BARRIER
#define WAVE_BARRIER() BARRIER()
#endif

// Launches run one after the other, unless a dialect defines these.
#ifndef AWAIT_PREVIOUS
#define AWAIT_PREVIOUS() ((void)0)
#define LET_NEXT_START() ((void)0)
#endif

// Writes a word to a union of the word, `all`, and its elements. WORD_PARTS are further members that a dialect needs.
#ifndef SET_WORD
#define WORD_PARTS
#define SET_WORD(r, word) ((r).all = (word))
#endif

// Forces the compiler to compute the value before the code that follows. Empty in most dialects.
#ifndef COMPUTED
#define COMPUTED(v) ((void)0)
#endif

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define STORAGE(dtype) CAT(S_, dtype)
#define LOAD(dtype, p, i) CAT(LOAD_, dtype)(p, i)
#define STORE(dtype, p, i, x) CAT(STORE_, dtype)(p, i, x)
#define ROUNDED_TO_0(dtype) CAT(ROUNDED_TO_0_, dtype)

// The arithmetic of kernels with a single arithmetic dtype. Integers wrap, which C leaves undefined for signed ones.
#ifdef ACC
typedef ACC A;
#ifdef INTEGER
#define ADD(a, b) ((A)((u64)(a) + (u64)(b)))
#define MULTIPLY(a, b) ((A)((u64)(a) * (u64)(b)))
#define IS_NAN(v) 0
#define HIGHEST ((A)(~(u64)0 >> 1))
#define LOWEST (-HIGHEST - 1)
#else
#define ADD(a, b) ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define IS_NAN(v) ((v) != (v))
#define HIGHEST ((A)as_f32(0x7f800000))
#define LOWEST (-HIGHEST)
#endif
// The larger or smaller of two numbers; NaN if either is.
#if defined(HAS_BEST_NAN) && !defined(INTEGER) && !defined(NEEDS_F64)
#define LARGER(a, b) max_nan_(a, b)
#define SMALLER(a, b) min_nan_(a, b)
#else
#define LARGER(a, b) ((b) > (a) || IS_NAN(b) ? (b) : (a))
#define SMALLER(a, b) ((b) < (a) || IS_NAN(b) ? (b) : (a))
#endif
#endif

#if defined(ACC) && !defined(INTEGER)
// The range in which a plain sum of squares is accurate. Above it the sum overflows; below it terms are subnormal. Sums outside of
// it are computed in another way.
#ifdef NEEDS_F64
#define LEAST_SQUARES 1e-280
#define MOST_SQUARES 1.7976931348623157e308
#define MARK_OF(v) ((u32)((v) != 0))
#else
#define LEAST_SQUARES 7.88860905e-31f
#define MOST_SQUARES 3.40282347e38f
#define MARK_OF(v) as_u32(v)
#endif
#define HAS_SQUARES(sum) ((sum) >= LEAST_SQUARES && (sum) <= MOST_SQUARES)

// The root of a sum of squares in units of the largest element: `scale * sqrt(sum)`.
typedef struct {
    A scale, sum;
} Root;
#define NO_ROOT {0, 0}

// NaN goes to the sum, and stays there.
FUNCTION void add_to_root(Root *r, A v) {
    v = fabs_(v);
    if (v > r->scale) {
        A share = r->scale / v;
        r->sum = (A)1 + r->sum * share * share;
        r->scale = v;
    } else if (v == r->scale) {
        r->sum += (A)1;
    } else {
        A share = v / r->scale;
        r->sum += share * share;
    }
}

// A partial sum of squares: the sum or, if that leaves the range, the negative of its root.
FUNCTION A negative_root(Root r) {
    A root = r.scale * sqrt_(r.sum);
    return root > 0 ? -root : root;
}

FUNCTION A root_of(A squares) { return squares >= 0 ? sqrt_(squares) : -squares; }

FUNCTION A joined_squares(A a, A b) {
    A sum = a + b;
    if (a >= 0 && b >= 0 && sum <= MOST_SQUARES) return sum;
    Root r = NO_ROOT;
    add_to_root(&r, root_of(a));
    add_to_root(&r, root_of(b));
    return negative_root(r);
}

// Three sums of squares: of the numbers, and of the numbers scaled down and up by a power of 2. One of the three is in range.
typedef struct {
    A as_is, down, up;
} Squares;
#ifdef NEEDS_F64
#define SCALE_UP 4.1495155688809930e180
#define SCALE_DOWN 2.4099198651028841e-181
#else
#define SCALE_UP 1.20892582e24f
#define SCALE_DOWN 8.27180613e-25f
#endif

FUNCTION Squares no_squares(void) {
    Squares s = {0, 0, 0};
    return s;
}

FUNCTION void add_squares(Squares *s, A v) {
    A down = v * SCALE_DOWN, up = v * SCALE_UP;
    s->as_is += v * v;
    s->down += down * down;
    s->up += up * up;
}

FUNCTION A sum_of_squares(Squares s) {
    if (HAS_SQUARES(s.as_is) || s.as_is != s.as_is) return s.as_is;
    A root = s.as_is > 1 ? sqrt_(s.down) * SCALE_UP : sqrt_(s.up) * SCALE_DOWN;
    return root > 0 ? -root : root;
}

// (v - mean) rstd. The halves keep the difference in range.
#define STANDARDISED(v, mean, rstd) (((A)0.5 * (v) - (A)0.5 * (mean)) * ((rstd) + (rstd)))
#endif

// A number as a fraction and an exponent of 2, of type SCALED.
#ifdef SCALED
typedef struct {
    A fraction;
    SCALED exponent;
} Scaled;

// 0, inf and NaN are fractions without an exponent. An exponent is clipped only far outside of every range.
#ifdef NEEDS_F64
FUNCTION Scaled scaled(A v, SCALED exponent) {
    Scaled made;
    int shift = 0;
    made.fraction = frexp_(v, &shift);
    made.exponent = v == 0 || v - v != 0 ? 0 : exponent + shift;
    return made;
}

FUNCTION A unscaled(Scaled v) {
    SCALED exponent = v.exponent;
    if (exponent > 10000) exponent = 10000;
    if (exponent < -10000) exponent = -10000;
    return ldexp_(v.fraction, (int)exponent);
}
#else
// A fraction from 0.5 to 1, as frexp_, with half the operations.
FUNCTION Scaled scaled(A v, SCALED exponent) {
    Scaled made;
    int is_subnormal = fabs_(v) < 1.17549435e-38f;
    u32 bits = as_u32(is_subnormal ? v * 16777216.0f : v), shift = bits >> 23 & 0xff;
    int has_exponent = shift - 1 < 254;
    made.fraction = has_exponent ? as_f32((bits & 0x807fffff) | 0x3f000000) : v;
    made.exponent = has_exponent ? exponent + (int)shift - (is_subnormal ? 150 : 126) : 0;
    return made;
}

FUNCTION int cut_off(SCALED exponent) { return (int)(exponent > 127 ? 127 : exponent < -126 ? -126 : exponent); }

// The exponent is applied in two steps: a single power of 2 could leave the range where the result does not.
FUNCTION A unscaled(Scaled v) {
    int first = cut_off(v.exponent), second = cut_off(v.exponent - first);
    return v.fraction * as_f32((u32)(first + 127) << 23) * as_f32((u32)(second + 127) << 23);
}
#endif

FUNCTION Scaled product(Scaled a, Scaled b) { return scaled(a.fraction * b.fraction, a.exponent + b.exponent); }
#endif

FUNCTION f32 exp_near_(f32 x) { return exp2_near_(x * 1.44269504f); }

// e^x - 1 for a 16-bit result, with a relative error of 4e-6: a polynomial near 0, where the subtraction would cancel. No branches.
FUNCTION f32 expm1_near_(f32 x) {
    f32 q = fma_(0.00834228657f, x, 0.0420927145f);
    q = fma_(q, x, 0.166673958f);
    q = fma_(q, x, 0.499974757f);
    f32 small = x * fma_(q, x, 1.0f), large = exp_near_(x) - 1;
    return fabs_(x) < 0.5f ? small : large;
}

// ln x = ln(1 + t) for a 16-bit result, with a relative error of 2e-6: a polynomial where x has lost most digits of t. No branches.
FUNCTION f32 log_near_of(f32 x, f32 t) {
    f32 q = fma_(0.20373982f, t, -0.25326228f);
    q = fma_(q, t, 0.33331022f);
    q = fma_(q, t, -0.4999875f);
    f32 small = t * fma_(q, t, 1.0f), large = log2_near_(x) * 0.693147181f;
    return fabs_(t) < 0.125f ? small : large;
}

FUNCTION f32 log_near_(f32 x) { return log_near_of(x, x - 1); }
FUNCTION f32 log1p_near_(f32 x) { return log_near_of(1 + x, x); }

// A power for a 16-bit result. The error of the base 2 logarithm, about 2^-22 of it, is multiplied by 150 at most; beyond that the
// power is out of range.
FUNCTION f32 pow_near_(f32 x, f32 y) {
    f32 p = y * log2_(fabs_(x));
    int is_low = p < -100;
    f32 r = exp2_near_(is_low ? p + 64 : p) * (is_low ? 5.42101086e-20f : 1.0f);
    if (as_u32(x) >> 31) {
        f32 halved = y * 0.5f;
        int is_whole = trunc_(y) == y, is_odd = is_whole && trunc_(halved) != halved;
        if (x < 0 && x - x == 0 && !is_whole) r = as_f32(0x7fc00000);
        if (is_odd) r = -r;
        if (x == -1 && y + y == y) r = 1;
    }
    return y == 0 || x == 1 ? 1 : r;
}

// A quotient with an error of up to two units in the last place. A dialect may define a faster one.
#ifndef divide_near_
#define divide_near_(a, b) ((a) / (b))
#endif

// tanh for a 16-bit result, with a relative error of 5e-6: a polynomial near 0, where the subtraction would cancel. No branches.
FUNCTION f32 tanh_near_(f32 x) {
    f32 t = x * x, q = fma_(fma_(-0.0539682540f, t, 0.133333333f), t, -0.333333333f);
    f32 large = 1 - divide_near_(2.0f, 1 + exp_near_(2 * x));
    return t < 0.1225f ? fma_(x * t, q, x) : large;
}

// NEAR: flag, results of pointwise rows are rounded to 16 bits, so that approximate functions are exact enough
#ifdef NEAR
#undef tanh_
#define tanh_ tanh_near_
#undef exp_
#define exp_ exp_near_
#endif

// The cumulative distribution function of the standard normal distribution.
#ifdef NEEDS_F64
#define normal_cdf_(x) (0.5 * (1 + erf_((x) * 0.70710678118654752)))
#else
// A polynomial of the base 2 logarithm of the tail probability beyond |x|. It leaves an error of 4e-8 of the probability. At
// infinity it is -infinity, as is the function.
FUNCTION f32 normal_cdf_(f32 x) {
    f32 t = fabs_(x), p = -2.12998157e-06f;
    p = fma_(p, t, 3.18959719e-05f);
    p = fma_(p, t, -0.000154915761f);
    p = fma_(p, t, -0.000202829557f);
    p = fma_(p, t, 0.00713797333f);
    p = fma_(p, t, -0.0525407083f);
    p = fma_(p, t, -0.459195346f);
    p = fma_(p, t, -1.1511066f);
    p = fma_(p, t, -0.99999994f);
    f32 beyond = exp2_near_(p);
    return x > 0 ? 1 - beyond : beyond;
}
#endif

// e^x for x of at most 0. Errors are small relative to the largest power of a row, which is 1.
#ifdef NEEDS_F64
#define POWER(x) exp_(x)
#else
#define POWER(x) exp_near_(x)
#endif

// Defines a function that exchanges values of type T between the lanes of a wave whose numbers differ by the bit `by`.
#define WAVE_EXCHANGE(name, T) \
    FUNCTION T name(T v, int by) { \
        union { \
            T value; \
            u32 words[sizeof(T) / 4]; \
        } u; \
        u.value = v; \
        _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) / 4); i++) u.words[i] = wave_xor(u.words[i], by); \
        return u.value; \
    }

// Joins the values of the threads of a team in a fixed order; all threads get the result. A group has teams of TEAM threads, a
// power of 2, or is a single team. Every thread of the group must call this.
#ifdef THREADS
#ifndef TEAM
#define TEAM THREADS
#endif
#define TEAMS (THREADS / TEAM)
#define MEMBER (LANE % TEAM)
#endif
#if defined(ACC) && !defined(INTEGER)
#if WAVE > 1
#define JOIN_PARTS ((THREADS + WAVE - 1) / WAVE)
WAVE_EXCHANGE(from_lane, A)
#else
#define JOIN_PARTS THREADS
#endif

// Kinds of joins: to the sum, to the maximum, or to a sum of squares.
#define JOIN_TO_SUM 0
#define JOIN_TO_MAX 1
#define JOIN_TO_SQUARES 2
#define BOTH(a, b) (kind == JOIN_TO_MAX ? LARGER(a, b) : kind == JOIN_TO_SQUARES ? joined_squares(a, b) : (a) + (b))

// Joins `n` values at once. `shared` has n * JOIN_PARTS elements. No thread may touch it until all threads have reached a further
// barrier; consecutive joins therefore alternate between two buffers.
LOCAL_FUNCTION void team_join(A *v, int n, LOCAL A *shared, int kind) {
#if WAVE > 1
#pragma unroll
    for (int k = 0; k < n; k++) {
#pragma unroll
        for (int by = (TEAM < WAVE ? TEAM : WAVE) / 2; by > 0; by /= 2) {
            A other = from_lane(v[k], by);
            v[k] = BOTH(v[k], other);
        }
    }
#if TEAM > WAVE
    if (LANE % WAVE == 0)
        for (int k = 0; k < n; k++) shared[k * JOIN_PARTS + LANE / WAVE] = v[k];
    BARRIER();
    for (int k = 0; k < n; k++) {
        LOCAL A *part = shared + k * JOIN_PARTS + LANE / TEAM * (TEAM / WAVE);
        v[k] = part[0];
#pragma unroll
        for (int i = 1; i < TEAM / WAVE; i++) v[k] = BOTH(v[k], part[i]);
    }
#endif
#else
    for (int k = 0; k < n; k++) shared[k * THREADS + LANE] = v[k];
    for (int below = TEAM / 2; below > 0; below /= 2) {
        BARRIER();
        for (int k = 0; k < n; k++) {
            int at = k * THREADS + LANE;
            if (MEMBER < below) shared[at] = BOTH(shared[at], shared[at + below]);
        }
    }
    BARRIER();
    // PoCL 3.1 computes another place for teams of two threads, if the difference is within the index.
    int first = LANE - MEMBER;
    for (int k = 0; k < n; k++) v[k] = shared[k * THREADS + first];
#endif
}

LOCAL_FUNCTION A team_join_one(A v, LOCAL A *shared, int kind) {
    team_join(&v, 1, shared, kind);
    return v;
}

// Memory for joins of up to `n` values, and the buffer of the current join.
#define JOINS(n) \
    SHARED(A, shared, 2 * (n) * JOIN_PARTS); \
    int side = 0
#define SIDE(n) (shared + (side ^= 1) * (n) * JOIN_PARTS)
#define TEAM_SUM(v) team_join_one(v, SIDE(1), JOIN_TO_SUM)
#define TEAM_MAX(v) team_join_one(v, SIDE(1), JOIN_TO_MAX)
#endif

// Rows of `extent` elements of dtype T. A team takes a row, and a group TEAMS rows at once. Rows are read as aligned words. A
// thread keeps its first PER words in registers, as numbers, and rereads the others in batches whenever it needs them.
//
// THREADS: 1 .. 1024, threads of a group
// TEAM: power of 2 or THREADS, threads of a row
// T: dtype of x
// ACC: dtype of the arithmetic
// VECTOR: 1 .. 16, elements of a word
// WORD: u8 .. u32x4, type of a word
// WHOLE: flag, rows consist of whole words; otherwise up to TEAM elements before and after the words are read one per thread
// PER: 0.., words that a thread keeps in registers
// OTHERS: flag, there are more words than are kept
// BATCH: 1.., words of a thread that are read at once
// HELD: 0.., of the other words of a thread, the number that stays in local memory; not defined where none may
// AT_ONCE: groups that a multiprocessor should run together
#ifdef PER
typedef STORAGE(T) S;
typedef union {
    WORD all;
    WORD_PARTS
    S each[VECTOR];
} Read;

// The position of a row: its number, its first element, the number of elements before the first word, the number of words, and the
// position of the thread's element outside of words, or -1.
typedef struct {
    i64 row;
    idx first, head, words, edge;
} Row;

// All threads of a group take the same number of turns. A team without a row repeats the last row, and writes nothing.
#define EACH_ROW(row) \
    for (i64 base = GROUP * TEAMS, row; row = base + LANE / TEAM, base < rows; base += GROUPS * TEAMS)

FUNCTION Row row_of(i64 row, i64 rows, i64 extent) {
    Row at;
    at.row = TEAMS > 1 && row >= rows ? rows - 1 : row;
    at.first = (idx)(at.row * extent);
    // ROCm 5's compiler turns this, together with the code below, into a product of single bits that it cannot compile.
    if (VECTOR == 2) COMPUTED(at.first);
#ifdef WHOLE
    at.head = 0;
    at.words = (idx)extent / VECTOR;
    at.edge = -1;
#else
    at.head = -at.first & (VECTOR - 1);
    if (at.head > (idx)extent) at.head = (idx)extent;
    at.words = ((idx)extent - at.head) / VECTOR;
    idx tail = (idx)extent - at.head - at.words * VECTOR;
    at.edge = MEMBER < at.head ? MEMBER : MEMBER < at.head + tail ? (idx)extent - at.head - tail + MEMBER : -1;
#endif
    return at;
}

// The position in the row of element `j` of word `w`.
#define POSITION(at, w, j) ((at).head + (w) * VECTOR + (j))
#define EACH_ELEMENT(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)

// The address of a word. Past the end of the row it is the address of a valid word.
FUNCTION GLOBAL const WORD *word_at(GLOBAL const S *x, Row at, idx w) {
    return (GLOBAL const WORD *)(x + (at.words > 0 ? at.first + POSITION(at, w < at.words ? w : 0, 0) : 0));
}

// The numbers of a word; `blank` for a word outside of the row.
FUNCTION void numbers_of(A *v, Read r, int is_inside, A blank) {
    EACH_ELEMENT(j) v[j] = is_inside ? (A)LOAD(T, r.each, j) : blank;
}

FUNCTION void put_numbers(GLOBAL S *y, const A *v, Row at, idx w) {
    Read r;
    EACH_ELEMENT(j) STORE(T, r.each, j, v[j]);
    GLOBAL WORD *to = (GLOBAL WORD *)(y + (at.first + POSITION(at, w, 0)));
#ifdef OTHERS
    // Results that are read again stay in the cache.
    if (w < at.words) store_once(to, r.all);
#else
    if (w < at.words) *to = r.all;
#endif
}

FUNCTION A edge_of(GLOBAL const S *x, Row at, A blank) {
    return at.edge >= 0 ? (A)LOAD(T, x, at.first + at.edge) : blank;
}

FUNCTION void put_edge(GLOBAL S *y, A v, Row at) {
    if (at.edge >= 0) STORE(T, y, at.first + at.edge, v);
}

// The kept words of a row. Only the last turn can be incomplete.
#define EACH_KEPT(turn) _Pragma("unroll") for (int turn = 0; turn < PER; turn++)
#define KEPT_WORD(turn) ((idx)(MEMBER + (turn) * TEAM))
#ifdef OTHERS
#define IS_KEPT(at, turn) 1
#else
#define IS_KEPT(at, turn) ((turn) < PER - 1 || KEPT_WORD(turn) < (at).words)
#endif

#if PER > 0
FUNCTION void read_kept(Read *r, GLOBAL const S *x, Row at) {
#ifdef OTHERS
    EACH_KEPT(turn) SET_WORD(r[turn], load_once(word_at(x, at, KEPT_WORD(turn))));
#else
    EACH_KEPT(turn) SET_WORD(r[turn], *word_at(x, at, KEPT_WORD(turn)));
#endif
}

FUNCTION void keep(A v[][VECTOR], GLOBAL const S *x, Row at, A blank) {
    Read r[PER];
    read_kept(r, x, at);
    EACH_KEPT(turn) numbers_of(v[turn], r[turn], IS_KEPT(at, turn), blank);
}
#endif

// The other words. A second reading goes in the opposite order, because the last words are most likely still in a cache.
#define BATCHES(at) (((at).words - PER * TEAM + BATCH * TEAM - 1) / (BATCH * TEAM))
#define EACH_BATCH(at, b) for (idx b = 0; b < BATCHES(at); b++)
#define EACH_BATCH_BACK(at, b) for (idx b = BATCHES(at) - 1; b >= 0; b--)
#define EACH_OF_BATCH(u) _Pragma("unroll") for (int u = 0; u < BATCH; u++)
#define BATCH_WORD(b, u) ((idx)MEMBER + (PER + (b) * BATCH + (u)) * TEAM)

FUNCTION void read_batch(Read *r, GLOBAL const S *x, Row at, idx b) {
    EACH_OF_BATCH(u) SET_WORD(r[u], *word_at(x, at, BATCH_WORD(b, u)));
}

// Local memory for words that are read again. The array has one word more than needed, because it cannot be empty.
#ifdef HELD
#define MOST_HELD HELD
#define HELD_MEMORY(name) SHARED_GIVEN(WORD, name, HELD_WORDS)
#else
#define MOST_HELD 0
#define HELD_MEMORY(name) LOCAL WORD *name = 0
#endif
#define HELD_WORDS (MOST_HELD * THREADS + 1)
#define HELD_WORD(b, u) (((int)(b) * BATCH + (u)) * THREADS + LANE)
#define IS_HELD(b, u) ((b) * BATCH + (u) < MOST_HELD)

LOCAL_FUNCTION void hold_batch(LOCAL WORD *held, const Read *r, idx b) {
    EACH_OF_BATCH(u) if (IS_HELD(b, u)) held[HELD_WORD(b, u)] = r[u].all;
}

LOCAL_FUNCTION void read_batch_again(Read *r, LOCAL const WORD *held, GLOBAL const S *x, Row at, idx b) {
    EACH_OF_BATCH(u) {
        if (IS_HELD(b, u)) SET_WORD(r[u], held[HELD_WORD(b, u)]);
        else SET_WORD(r[u], *word_at(x, at, BATCH_WORD(b, u)));
    }
}
#endif

// Many tensors in one launch. Groups take chunks of elements. A table has: for each tensor its first chunk, counted over all
// tensors; the total number of chunks; for each tensor an entry of OPERANDS addresses, the number of elements, and the number of
// elements in whole words.
#ifdef OPERANDS
#define CHUNKS(table, tensors) ((table)[tensors])
#define ENTRY(table, tensors, t) ((table) + (tensors) + 1 + (t) * (OPERANDS + 2))

// The tensor of a chunk: the last one whose first chunk is at or before it.
FUNCTION i64 tensor_of(GLOBAL const i64 *table, i64 tensors, i64 chunk) {
    i64 low = 0, high = tensors;
    while (high - low > 1) {
        i64 middle = (low + high) / 2;
        if (table[middle] <= chunk) low = middle;
        else high = middle;
    }
    return low;
}

// Loops over the elements of a chunk of `size`: first over its whole words, then over the remaining elements.
#define CHUNK_OF(table, tensors, chunk, size) \
    i64 tensor = tensor_of(table, tensors, chunk); \
    GLOBAL const i64 *entry = ENTRY(table, tensors, tensor); \
    idx start = (idx)((chunk - (table)[tensor]) * (size)), end = (idx)entry[OPERANDS]; \
    idx whole = (idx)entry[OPERANDS + 1]; \
    if (end - start > (idx)(size)) end = start + (idx)(size)
#define EACH_WHOLE(g) for (idx g = start / VECTOR + LANE; g < (whole < end ? whole : end) / VECTOR; g += THREADS)
#define EACH_OTHER(g) for (idx g = (start > whole ? start : whole) + LANE; g < end; g += THREADS)
#endif

// Reports a bad element: the position of the first in order, and the value of the one that was reported first.
FUNCTION void note(GLOBAL i64 *status, i64 position, i64 value) {
    raise_to((GLOBAL u32 *)status + 1, position < 0xfffffffe ? ~(u32)position : 1);
    if (compare_and_swap(status, 0, 1) == 0) {
        status[1] = position;
        status[2] = value;
    }
}

// What all kernels share, in every dialect: storage types, loads and stores, bad elements.

#ifdef WIDE
typedef i64 idx;
#define HIGHEST_IDX 0x7fffffffffffffff
#else
typedef i32 idx;
#define HIGHEST_IDX 0x7fffffff
#endif

#ifdef INTS
typedef struct {
    i64 v[INTS];
} Ints;
#endif

// How a dtype lies in memory, and what it is in a register.
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

// To nearest, ties to even; NaN stays NaN.
FUNCTION u16 f32_to_bf16(f32 v) {
    u32 bits = as_u32(v);
    if (v != v) return (u16)((bits >> 16) | 0x40);
    return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// A value on its way to 16 bits, so that it is rounded once.
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

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define STORAGE(dtype) CAT(S_, dtype)
#define LOAD(dtype, p, i) CAT(LOAD_, dtype)(p, i)
#define STORE(dtype, p, i, x) CAT(STORE_, dtype)(p, i, x)

// The arithmetic of kernels that have one dtype for it. Integers wrap, which C leaves open for signed ones.
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
#endif

// Defines a function that gives a thread the value, of type T, of the one that is `by` lanes up.
#define WAVE_EXCHANGE(name, T) \
    FUNCTION T name(T v, int by) { \
        union { \
            T value; \
            u32 words[sizeof(T) / 4]; \
        } u; \
        u.value = v; \
        _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) / 4); i++) u.words[i] = wave_down(u.words[i], by); \
        return u.value; \
    }

// Joins the values of all threads of a group, in a fixed order; all of them get the result. `shared` has THREADS
// elements. Every thread of the group must come.
#if defined(ACC) && !defined(INTEGER)
#if WAVE > 1
WAVE_EXCHANGE(from_lane, A)
#endif
FUNCTION A group_join(A v, LOCAL A *shared, int is_max) {
#define GROUP_JOINED(a, b) (is_max ? ((b) > (a) || (b) != (b) ? (b) : (a)) : (a) + (b))
#if WAVE > 1
    for (int by = WAVE / 2; by > 0; by /= 2) {
        A other = from_lane(v, by);
        v = GROUP_JOINED(v, other);
    }
    if (LANE % WAVE == 0) shared[LANE / WAVE] = v;
    BARRIER();
    v = shared[0];
    for (int i = 1; i < THREADS / WAVE; i++) v = GROUP_JOINED(v, shared[i]);
#else
    shared[LANE] = v;
    for (int below = THREADS / 2; below > 0; below /= 2) {
        BARRIER();
        if (LANE < below) shared[LANE] = GROUP_JOINED(shared[LANE], shared[LANE + below]);
    }
    BARRIER();
    v = shared[0];
#endif
    BARRIER();
    return v;
}

#define GROUP_SUM(v, shared) group_join(v, shared, 0)
#define GROUP_MAX(v, shared) group_join(v, shared, 1)
#endif

// Rows of `extent` elements of dtype T, which a group reads as aligned words of VECTOR elements: the first and last word
// of a row may hold elements of its neighbours. A thread keeps PER words in registers, and fills them once; with PER 0 the
// row is too long for that, and every turn through it reads memory.
#ifdef PER
typedef STORAGE(T) S;
typedef union {
    WORD all;
    S each[VECTOR];
} Read;

#define FIRST ((idx)(row * extent))
#define FIRST_WORD (FIRST / VECTOR)
#define WORDS ((FIRST + (idx)extent + VECTOR - 1) / VECTOR - FIRST_WORD)
// Where element `j` of word `w` lies in the row, and whether it does.
#define POSITION(w, j) ((FIRST_WORD + (w)) * VECTOR + (j) - FIRST)
#define INSIDE(w, j) ((u64)POSITION(w, j) < (u64)extent)
#define WORD_OF(x, w) (*(GLOBAL const WORD *)((x) + (FIRST_WORD + (w)) * VECTOR))

#if PER > 0
#define KEEP(name) Read name[PER]
#define FILL(name, x) EACH_WORD(w) name[turn].all = WORD_OF(x, w)
#define FETCH(r, name, x, w) ((r) = name[turn])
#define EACH_WORD(w) \
    _Pragma("unroll") for (int turn = 0; turn < PER; turn++) \
        for (idx w = LANE + turn * THREADS, last = w; w == last && w < WORDS; w++)
#else
#define KEEP(name)
#define FILL(name, x)
#define FETCH(r, name, x, w) ((r).all = WORD_OF(x, w))
#define EACH_WORD(w) for (idx w = LANE; w < WORDS; w += THREADS)
#endif
#define EACH_ELEMENT(j) _Pragma("unroll") for (int j = 0; j < VECTOR; j++)

// Writes what lies inside of the row.
FUNCTION void put_word(GLOBAL S *y, Read r, idx word, idx first, i64 extent) {
    idx at = word * VECTOR - first;
    if (at >= 0 && at + VECTOR <= (idx)extent) {
        *(GLOBAL WORD *)(y + word * VECTOR) = r.all;
        return;
    }
    EACH_ELEMENT(j) if ((u64)(at + j) < (u64)extent) y[word * VECTOR + j] = r.each[j];
}
#define PUT_WORD(y, r, w) put_word(y, r, FIRST_WORD + (w), FIRST, extent)
#endif

// Many tensors in one launch, whose groups take chunks of their elements. A table has for each tensor its first chunk,
// counted over all of them; then how many chunks there are; then for each tensor an entry: OPERANDS addresses, the number
// of elements, and how many of these lie in whole words.
#ifdef OPERANDS
#define CHUNKS(table, tensors) ((table)[tensors])
#define ENTRY(table, tensors, t) ((table) + (tensors) + 1 + (t) * (OPERANDS + 2))

// The tensor of a chunk: the last one that begins at it or before.
FUNCTION i64 tensor_of(GLOBAL const i64 *table, i64 tensors, i64 chunk) {
    i64 low = 0, high = tensors;
    while (high - low > 1) {
        i64 middle = (low + high) / 2;
        if (table[middle] <= chunk) low = middle;
        else high = middle;
    }
    return low;
}

// Goes through the elements of a chunk of `size`: thread by thread through its whole words, then through the others.
#define CHUNK_OF(table, tensors, chunk, size) \
    i64 tensor = tensor_of(table, tensors, chunk); \
    GLOBAL const i64 *entry = ENTRY(table, tensors, tensor); \
    idx start = (idx)((chunk - (table)[tensor]) * (size)), end = (idx)entry[OPERANDS]; \
    idx whole = (idx)entry[OPERANDS + 1]; \
    if (end - start > (idx)(size)) end = start + (idx)(size)
#define EACH_WHOLE(g) for (idx g = start / VECTOR + LANE; g < (whole < end ? whole : end) / VECTOR; g += THREADS)
#define EACH_OTHER(g) for (idx g = (start > whole ? start : whole) + LANE; g < end; g += THREADS)
#endif

// Notes a bad element: which is the first in order, and the one that was noted first with its value.
FUNCTION void note(GLOBAL i64 *status, i64 position, i64 value) {
    raise_to((GLOBAL u32 *)status + 1, position < 0xfffffffe ? ~(u32)position : 1);
    if (compare_and_swap(status, 0, 1) == 0) {
        status[1] = position;
        status[2] = value;
    }
}

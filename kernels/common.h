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

// Notes a bad element. The first one noted stays.
FUNCTION void note(GLOBAL i64 *status, i64 position, i64 value) {
    if (compare_and_swap(status, 0, 1) == 0) {
        status[1] = position;
        status[2] = value;
    }
}

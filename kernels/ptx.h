// PTX of NVIDIA's devices, for every dialect. NV_COMPUTE: ten times the compute capability, such as 90 for 9.0.

FUNCTION f32 f16_to_f32(u16 h) {
    f32 v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

// The conversion of two numbers runs where arithmetic does. That of one shares a unit of a quarter of the rate with roots and powers.
FUNCTION u16 f32_to_f16(f32 v) {
#if NV_COMPUTE >= 80
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(v));
    return (u16)both;
#else
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
#endif
}

// 2^x of f32. The error grows with the argument. Subnormal results are 0.
FUNCTION f32 exp2_near_(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The base 2 logarithm of f32. The error is 2^-22 from 0.5 to 2, and 2^-22 of the result elsewhere.
FUNCTION f32 log2_near_(f32 x) {
    f32 y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#if NV_COMPUTE >= 70
// Words for communication between groups of a running launch. Each is written and read as a whole. The order in which writes become
// visible is unspecified.
FUNCTION void leave_word(GLOBAL u64 *p, u64 word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"((u64)p), "l"(word) : "memory");
}

FUNCTION u64 left_word(GLOBAL const u64 *p) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"((u64)p) : "memory");
    return word;
}

// Elements and words that groups of a running launch write and read. A word may be read while some of its elements are written.
FUNCTION void show_u16(GLOBAL u16 *p, u16 v) {
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" : : "l"((u64)p), "h"(v) : "memory");
}

FUNCTION void show_u32(GLOBAL u32 *p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" : : "l"((u64)p), "r"(v) : "memory");
}

FUNCTION u16 seen_u16(GLOBAL const u16 *p) {
    u16 v;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(v) : "l"((u64)p) : "memory");
    return v;
}

FUNCTION u32 seen_u32(GLOBAL const u32 *p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"((u64)p) : "memory");
    return v;
}

FUNCTION u32x2 seen_u32x2(GLOBAL const u32x2 *p) {
    u32x2 v;
    u32 x, y;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "l"((u64)p) : "memory");
    v.x = x;
    v.y = y;
    return v;
}

FUNCTION u32x4 seen_u32x4(GLOBAL const u32x4 *p) {
    u32x4 v;
    u32 x, y, z, w;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "l"((u64)p)
                 : "memory");
    v.x = x;
    v.y = y;
    v.z = z;
    v.w = w;
    return v;
}
#endif

#if NV_COMPUTE >= 80
#define HAS_BF16
FUNCTION u16 f32_to_bf16(f32 v) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(0.0f), "f"(v));
    return (u16)both;
}

// The first number of the two is in the upper half, as in an f32.
FUNCTION f32 rounded_bf16(f32 v) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(v), "f"(0.0f));
    return as_f32(both);
}
#define ROUND_bf16(x) rounded_bf16(to_odd(x))

#define HAS_BEST_NAN
FUNCTION f32 max_nan_(f32 a, f32 b) {
    f32 v;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}

FUNCTION f32 min_nan_(f32 a, f32 b) {
    f32 v;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
}
#endif

// PTX of NVIDIA's devices, for every dialect. NV_COMPUTE: ten times the compute capability, such as 90 for 9.0.

FUNCTION f32 f16_to_f32(u16 h) {
    f32 v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(h));
    return v;
}

FUNCTION u16 f32_to_f16(f32 v) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
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
#endif

#if NV_COMPUTE >= 80
#define HAS_BF16
FUNCTION u16 f32_to_bf16(f32 v) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

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

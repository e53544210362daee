// CUDA C++ and HIP C++ for a C++17 compiler: what a kernel finds without including anything. Precompiled; the compile driver
// (runtime/compile.cpp) puts the kernels after it.
//
//   SIMT_WAVE=32|64   lanes of a wave
//   SIMT_HIP=0|1      HIP: masks of 64 bits, and operations of a wave without a mask
//   SIMT_CHECKED=0|1  the compiler makes a call of every access to memory
#pragma once
#include "contract.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#if SIMT_CHECKED
// Programs run on one OS thread. The runtime finds the variables by their section and the compiler's list of globals.
#define SIMT_SHARED __attribute__((section(".simt_shared"), aligned(16))) static
// Helpers are not checked themselves, and stand in no report.
#define SIMT_HELPER static __attribute__((noinline, unused, no_sanitize("address", "undefined")))
#define SIMT_SITE __builtin_return_address(0)
#define SIMT_CHECK_ATOMIC(p) simt_access(p, sizeof *(p), SIMT_ATOMIC, __builtin_return_address(0))
#else
#define SIMT_SHARED __attribute__((aligned(16))) static thread_local
#define SIMT_HELPER static inline __attribute__((unused))
#define SIMT_SITE nullptr
#define SIMT_CHECK_ATOMIC(p) ((void)0)
#endif
#define SIMT_INLINE static inline __attribute__((unused, always_inline))
// Calls in the two arms of a branch are two calls, which meet nowhere.
#define SIMT_CONVERGENT __attribute__((convergent, nomerge))
#define SIMT_CALL [[clang::nomerge]]

// ---- qualifiers and built-in variables

#define __global__
#define __device__
#define __constant__
#define __host__
#define __grid_constant__
#define __shared__ SIMT_SHARED
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (simt_self.thread)
#define blockIdx (simt_self.block)
#define blockDim (simt_self.block_extent)
#define gridDim (simt_self.grid_extent)
#define warpSize SIMT_WAVE

#define SIMT_VECTOR(T, name, size) \
    struct alignas(2 * size) name##2 { \
        T x, y; \
    }; \
    struct name##3 { \
        T x, y, z; \
    }; \
    struct alignas(4 * size > 16 ? 16 : 4 * size) name##4 { \
        T x, y, z, w; \
    }; \
    SIMT_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; } \
    SIMT_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    SIMT_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define uint3 simt_uint3
SIMT_VECTOR(unsigned, uint, 4)
#undef uint3
SIMT_VECTOR(float, float, 4)
SIMT_VECTOR(double, double, 8)
SIMT_VECTOR(int, int, 4)
SIMT_VECTOR(short, short, 2)
SIMT_VECTOR(unsigned short, ushort, 2)
SIMT_VECTOR(signed char, char, 1)
SIMT_VECTOR(unsigned char, uchar, 1)
SIMT_VECTOR(long long, longlong, 8)
SIMT_VECTOR(unsigned long long, ulonglong, 8)

// ---- how a program describes itself; the compile driver writes one `simt_kernel` for each kernel

// `extern __shared__ T x[]` becomes `T *const x = simt_dynamic()`.
struct simt_dynamic {
    template <class T> operator T *() const { return (T *)simt_self.dynamic_shared; }
};

template <class T> struct simt_is_pointer {
    static constexpr unsigned value = 0;
};
template <class T> struct simt_is_pointer<T *> {
    static constexpr unsigned value = 1;
};
template <unsigned... I> struct simt_indices {};
template <unsigned N, unsigned... I> struct simt_up_to : simt_up_to<N - 1, N - 1, I...> {};
template <unsigned... I> struct simt_up_to<0, I...> {
    using type = simt_indices<I...>;
};

// Calls a kernel with arguments by address, as launches give them.
template <auto F> struct simt_thunk;
template <class... A, void (*F)(A...)> struct simt_thunk<F> {
    static constexpr unsigned n = sizeof...(A);
    static constexpr simt_argument arguments[n + 1] = {{sizeof(A), simt_is_pointer<A>::value}...};
    template <unsigned... I>
    __attribute__((no_sanitize("address"))) static void with(void *const *a, simt_indices<I...>) {
        F(*(A *)a[I]...);
    }
    __attribute__((no_sanitize("address"))) static void call(void *const *a) {
        with(a, typename simt_up_to<n>::type());
    }
};
// The first of the numbers of `__launch_bounds__`.
template <class... Rest> constexpr unsigned simt_bound(unsigned threads = 0, Rest...) { return threads; }

static __attribute__((no_sanitize("address"), unused)) char *simt_touch() {
#if SIMT_CHECKED
    return nullptr;
#else
    static thread_local char here;
    return &here;
#endif
}
SIMT_EXPORT __attribute__((used, no_sanitize("address"))) const simt_description simt_program;
__attribute__((no_sanitize("address"))) const simt_description simt_program = {SIMT_WAVE, SIMT_HIP, SIMT_CHECKED, simt_touch};

// ---- barriers and operations of a wave

SIMT_CONVERGENT SIMT_HELPER void __syncthreads() { SIMT_CALL simt_barrier(SIMT_SYNC, 0, SIMT_SITE); }
SIMT_CONVERGENT SIMT_HELPER int __syncthreads_count(int p) { SIMT_CALL return simt_barrier(SIMT_COUNT, p, SIMT_SITE); }
SIMT_CONVERGENT SIMT_HELPER int __syncthreads_and(int p) { SIMT_CALL return simt_barrier(SIMT_ALL, p, SIMT_SITE); }
SIMT_CONVERGENT SIMT_HELPER int __syncthreads_or(int p) { SIMT_CALL return simt_barrier(SIMT_ANY, p, SIMT_SITE); }
SIMT_HELPER void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_HELPER void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMT_HELPER void __nanosleep(unsigned) { simt_spin(); }
SIMT_HELPER void __trap() { simt_fail("__trap() was called"); }

enum { SIMT_FROM, SIMT_UP, SIMT_DOWN, SIMT_XOR };

// The lane that lane `i` reads.
SIMT_HELPER int simt_source(const simt_request *r, int i) {
    int width = r->width, base = i & ~(width - 1), a = r->argument;
    switch (r->how) {
    case SIMT_UP: return i - a < base ? i : i - a;
    case SIMT_DOWN: return (i & (width - 1)) + a >= width ? i : i + a;
    case SIMT_XOR: return (i ^ a) >= base + width ? i : (i ^ a);
    }
    if (a < 0 || a >= width)
        simt_fail("%s: source lane %d is outside of 0..%d (CUDA wraps it, HIP reads another group)", r->name, a, width - 1);
    return base + (a & (width - 1));
}

SIMT_HELPER void simt_run_shuffle(simt_request *const *lanes, unsigned wave) {
    for (int i = 0; i < (int)wave; i++) {
        const simt_request *r = lanes[i];
        if (!r) continue;
        if (r->width <= 0 || r->width > (int)wave || (r->width & (r->width - 1)))
            simt_fail("%s: width %d is not a power of two up to %u", r->name, r->width, wave);
        int from = simt_source(r, i);
        if (!lanes[from])
            simt_fail("%s: lane %d reads lane %d, which takes no part (exited, masked out or beyond the block)", r->name, i,
                      from);
        memcpy(r->out, lanes[from]->in, r->size);
    }
}

enum { SIMT_BALLOT, SIMT_SOME, SIMT_EVERY };

SIMT_HELPER void simt_run_vote(simt_request *const *lanes, unsigned wave) {
    uint64_t yes = 0, all = 0;
    for (unsigned i = 0; i < wave; i++) {
        if (!lanes[i]) continue;
        all |= 1ull << i;
        if (*(const int *)lanes[i]->in) yes |= 1ull << i;
    }
    for (unsigned i = 0; i < wave; i++) {
        if (!lanes[i]) continue;
        int how = lanes[i]->how;
        *(uint64_t *)lanes[i]->out = how == SIMT_BALLOT ? yes : how == SIMT_SOME ? yes != 0 : yes == all;
    }
}

SIMT_HELPER void simt_run_nothing(simt_request *const *, unsigned) {}

template <class T>
SIMT_CONVERGENT SIMT_HELPER T simt_shuffle(const char *name, int how, unsigned flags, uint64_t mask, T v, int argument, int width) {
    static_assert(__is_trivially_copyable(T), "a shuffle moves bytes");
    T out;
    simt_request r = {name, flags, mask, &v, &out, sizeof(T), how, argument, width, simt_run_shuffle, SIMT_SITE};
    SIMT_CALL simt_together(&r);
    return out;
}

SIMT_CONVERGENT SIMT_HELPER uint64_t simt_vote(const char *name, int how, unsigned flags, uint64_t mask, int p) {
    uint64_t out;
    simt_request r = {name, flags, mask, &p, &out, sizeof p, how, 0, SIMT_WAVE, simt_run_vote, SIMT_SITE};
    SIMT_CALL simt_together(&r);
    return out;
}

SIMT_CONVERGENT SIMT_HELPER void simt_sync_wave(uint64_t mask) {
    simt_request r = {"__syncwarp", SIMT_ORDERS, mask, nullptr, nullptr, 0, 0, 0, SIMT_WAVE, simt_run_nothing, SIMT_SITE};
    SIMT_CALL simt_together(&r);
}

#if SIMT_HIP
typedef uint64_t simt_mask;
template <class M> SIMT_INLINE uint64_t simt_mask_of(M mask) {
    static_assert(sizeof(M) == 8, "HIP's masks of lanes have 64 bits");
    return mask;
}
#define SIMT_SHUFFLE(name, how, Argument) \
    template <class T> SIMT_INLINE T name(T v, Argument a, int width = SIMT_WAVE) { \
        return simt_shuffle(#name, how, SIMT_IMPLICIT, ~0ull, v, (int)a, width); \
    } \
    template <class M, class T> SIMT_INLINE T name##_sync(M mask, T v, Argument a, int width = SIMT_WAVE) { \
        return simt_shuffle(#name "_sync", how, 0, simt_mask_of(mask), v, (int)a, width); \
    }
SIMT_INLINE uint64_t __ballot(int p) { return simt_vote("__ballot", SIMT_BALLOT, SIMT_IMPLICIT, ~0ull, p); }
SIMT_INLINE int __any(int p) { return (int)simt_vote("__any", SIMT_SOME, SIMT_IMPLICIT, ~0ull, p); }
SIMT_INLINE int __all(int p) { return (int)simt_vote("__all", SIMT_EVERY, SIMT_IMPLICIT, ~0ull, p); }
SIMT_INLINE unsigned __lane_id() { return simt_self.lane; }
#define HIP_DYNAMIC_SHARED(T, name) T *const name = simt_dynamic();
#else
typedef unsigned simt_mask;
SIMT_INLINE uint64_t simt_mask_of(unsigned mask) { return mask; }
#define SIMT_SHUFFLE(name, how, Argument) \
    template <class T> SIMT_INLINE T name##_sync(unsigned mask, T v, Argument a, int width = SIMT_WAVE) { \
        return simt_shuffle(#name "_sync", how, 0, simt_mask_of(mask), v, (int)a, width); \
    }
#endif
SIMT_SHUFFLE(__shfl, SIMT_FROM, int)
SIMT_SHUFFLE(__shfl_up, SIMT_UP, unsigned)
SIMT_SHUFFLE(__shfl_down, SIMT_DOWN, unsigned)
SIMT_SHUFFLE(__shfl_xor, SIMT_XOR, int)
template <class M> SIMT_INLINE simt_mask __ballot_sync(M mask, int p) {
    return (simt_mask)simt_vote("__ballot_sync", SIMT_BALLOT, 0, simt_mask_of(mask), p);
}
template <class M> SIMT_INLINE int __any_sync(M mask, int p) {
    return (int)simt_vote("__any_sync", SIMT_SOME, 0, simt_mask_of(mask), p);
}
template <class M> SIMT_INLINE int __all_sync(M mask, int p) {
    return (int)simt_vote("__all_sync", SIMT_EVERY, 0, simt_mask_of(mask), p);
}
SIMT_INLINE void __syncwarp(simt_mask mask = (simt_mask)~0ull) { simt_sync_wave(mask); }

// ---- memory

template <class T> SIMT_INLINE T __ldg(const T *p) { return *p; }
template <class T> SIMT_INLINE T __ldcg(const T *p) { return *p; }
template <class T> SIMT_INLINE T __ldcs(const T *p) { return *p; }
template <class T> SIMT_INLINE void __stcg(T *p, T v) { *p = v; }
template <class T> SIMT_INLINE void __stcs(T *p, T v) { *p = v; }

// Replaces *p by f of it; Bits is an integer of the size of T.
template <class T, class Bits, class F> SIMT_HELPER T simt_replace(T *p, F f) {
    Bits old = __atomic_load_n((Bits *)p, __ATOMIC_RELAXED), bits;
    T before, after;
    do {
        memcpy(&before, &old, sizeof before);
        after = f(before);
        memcpy(&bits, &after, sizeof bits);
    } while (!__atomic_compare_exchange_n((Bits *)p, &old, bits, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}
#define SIMT_REPLACE(name, T, Bits, after) \
    SIMT_HELPER T name(T *p, T v) { \
        SIMT_CHECK_ATOMIC(p); \
        simt_spin(); \
        return simt_replace<T, Bits>(p, [v](T o) -> T { return after; }); \
    }
#define SIMT_REPLACE_INTEGER(name, after) \
    SIMT_REPLACE(name, int, int, after) \
    SIMT_REPLACE(name, unsigned, unsigned, after) \
    SIMT_REPLACE(name, unsigned long long, unsigned long long, after)
SIMT_REPLACE_INTEGER(atomicAdd, o + v)
SIMT_REPLACE(atomicAdd, float, unsigned, o + v)
SIMT_REPLACE(atomicAdd, double, unsigned long long, o + v)
SIMT_REPLACE(atomicSub, int, int, o - v)
SIMT_REPLACE(atomicSub, unsigned, unsigned, o - v)
SIMT_REPLACE_INTEGER(atomicMin, v < o ? v : o)
SIMT_REPLACE(atomicMin, long long, long long, v < o ? v : o)
SIMT_REPLACE_INTEGER(atomicMax, v > o ? v : o)
SIMT_REPLACE(atomicMax, long long, long long, v > o ? v : o)
SIMT_REPLACE_INTEGER(atomicAnd, o & v)
SIMT_REPLACE_INTEGER(atomicOr, o | v)
SIMT_REPLACE_INTEGER(atomicXor, o ^ v)
SIMT_REPLACE_INTEGER(atomicExch, ((void)o, v))
SIMT_REPLACE(atomicExch, float, unsigned, ((void)o, v))
SIMT_REPLACE(atomicInc, unsigned, unsigned, o >= v ? 0 : o + 1)
#define SIMT_COMPARE_AND_SWAP(T) \
    SIMT_HELPER T atomicCAS(T *p, T expected, T v) { \
        SIMT_CHECK_ATOMIC(p); \
        simt_spin(); \
        __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
        return expected; \
    }
SIMT_COMPARE_AND_SWAP(int)
SIMT_COMPARE_AND_SWAP(unsigned)
SIMT_COMPARE_AND_SWAP(unsigned long long)
// A read that does not race with atomics; a volatile one does.
template <class T> SIMT_HELPER T simt_load_relaxed(const T *p) {
    SIMT_CHECK_ATOMIC(p);
    T v;
    __atomic_load(p, &v, __ATOMIC_RELAXED);
    return v;
}
// A write of what other threads write too.
template <class T, class V> SIMT_HELPER void simt_store_relaxed(T *p, V value) {
    SIMT_CHECK_ATOMIC(p);
    __atomic_store_n(p, (T)value, __ATOMIC_RELAXED);
}

// ---- mathematics

#define SIMT_OF_FLOAT(name, expression) SIMT_INLINE float name(float x) { return expression; }
#define SIMT_OVERLOAD(name) SIMT_OF_FLOAT(name, name##f(x))
SIMT_OVERLOAD(exp) SIMT_OVERLOAD(exp2) SIMT_OVERLOAD(expm1) SIMT_OVERLOAD(log) SIMT_OVERLOAD(log2) SIMT_OVERLOAD(log1p)
SIMT_OVERLOAD(sqrt) SIMT_OVERLOAD(sin) SIMT_OVERLOAD(cos) SIMT_OVERLOAD(tan) SIMT_OVERLOAD(tanh) SIMT_OVERLOAD(erf)
SIMT_OVERLOAD(erfc) SIMT_OVERLOAD(fabs) SIMT_OVERLOAD(floor) SIMT_OVERLOAD(ceil) SIMT_OVERLOAD(trunc) SIMT_OVERLOAD(rint)
SIMT_OVERLOAD(round) SIMT_OF_FLOAT(abs, fabsf(x)) SIMT_OF_FLOAT(rsqrtf, 1.0f / sqrtf(x))
SIMT_OF_FLOAT(__frcp_rn, 1.0f / x) SIMT_OF_FLOAT(__fsqrt_rn, sqrtf(x)) SIMT_OF_FLOAT(__frsqrt_rn, 1.0f / sqrtf(x))
SIMT_INLINE float pow(float x, float y) { return powf(x, y); }
SIMT_INLINE float fmod(float x, float y) { return fmodf(x, y); }
SIMT_INLINE float fma(float a, float b, float c) { return fmaf(a, b, c); }
SIMT_INLINE float frexp(float x, int *e) { return frexpf(x, e); }
SIMT_INLINE float ldexp(float x, int e) { return ldexpf(x, e); }
SIMT_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
SIMT_INLINE int abs(int x) { return x < 0 ? -x : x; }
// glibc declares these names, but does not have them.
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)
#define __tanhf(x) tanhf(x)
#define __fdividef(x, y) ((float)(x) / (float)(y))
#define __fmaf_rn(a, b, c) fmaf(a, b, c)
SIMT_HELPER float __fadd_rn(float a, float b) { return a + b; }
SIMT_HELPER float __fmul_rn(float a, float b) { return a * b; }
SIMT_HELPER float __fdiv_rn(float a, float b) { return a / b; }
#define SIMT_MIN_MAX(T) \
    SIMT_INLINE T min(T a, T b) { return b < a ? b : a; } \
    SIMT_INLINE T max(T a, T b) { return a < b ? b : a; }
SIMT_MIN_MAX(int) SIMT_MIN_MAX(unsigned) SIMT_MIN_MAX(long) SIMT_MIN_MAX(unsigned long)
SIMT_MIN_MAX(long long) SIMT_MIN_MAX(unsigned long long)
SIMT_INLINE float min(float a, float b) { return fminf(a, b); }
SIMT_INLINE float max(float a, float b) { return fmaxf(a, b); }
SIMT_INLINE double min(double a, double b) { return fmin(a, b); }
SIMT_INLINE double max(double a, double b) { return fmax(a, b); }

// ---- bits

template <class To, class From> SIMT_INLINE To simt_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    __builtin_memcpy(&to, &v, sizeof to);
    return to;
}
SIMT_INLINE int __float_as_int(float x) { return simt_bits<int>(x); }
SIMT_INLINE unsigned __float_as_uint(float x) { return simt_bits<unsigned>(x); }
SIMT_INLINE float __int_as_float(int x) { return simt_bits<float>(x); }
SIMT_INLINE float __uint_as_float(unsigned x) { return simt_bits<float>(x); }
SIMT_INLINE long long __double_as_longlong(double x) { return simt_bits<long long>(x); }
SIMT_INLINE double __longlong_as_double(long long x) { return simt_bits<double>(x); }
SIMT_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
SIMT_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
SIMT_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
SIMT_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
SIMT_INLINE int __ffs(int x) { return __builtin_ffs(x); }
SIMT_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
SIMT_INLINE unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
SIMT_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
SIMT_INLINE int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
SIMT_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// What a prelude calls in place of the instructions that convert to 16 bits and back. To nearest, ties to even.
SIMT_INLINE float simt_f16_to_f32(unsigned short h) {
    unsigned sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00) return simt_bits<float>(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    // Read as an f32, the exponent is 112 too low, of subnormal numbers too.
    return simt_bits<float>(sign | simt_bits<unsigned>(simt_bits<float>(rest << 13) * 0x1p112f));
}
SIMT_INLINE unsigned short simt_f32_to_f16(float v) {
    unsigned bits = simt_bits<unsigned>(v), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return 0x7fff;
    if (rest >= 0x477ff000u) return (unsigned short)(sign | 0x7c00);
    // Below the normal numbers of f16, an addition rounds to multiples of 2^-24.
    if (rest < 0x38800000u)
        return (unsigned short)(sign | (simt_bits<unsigned>(simt_bits<float>(rest) + 0.5f) - 0x3f000000u));
    return (unsigned short)(sign | (rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13);
}
SIMT_INLINE float simt_bf16_to_f32(unsigned short h) { return simt_bits<float>((unsigned)h << 16); }
SIMT_INLINE unsigned short simt_f32_to_bf16(float v) {
    unsigned bits = simt_bits<unsigned>(v);
    return v != v ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// What ex2.approx.ftz gives: 0 for what would be subnormal.
SIMT_INLINE float simt_exp2_near(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

#include "matrix.h"

// Bare runtime compilers have none of <math.h>'s macros.
#undef INFINITY
#undef NAN

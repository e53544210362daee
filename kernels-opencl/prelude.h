// The dialect of the kernels in OpenCL C 1.2 and later.

#if __OPENCL_VERSION__ <= CL_VERSION_1_0 || defined(NEEDS_F64)
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

typedef uchar u8;
typedef ushort u16;
typedef int i32;
typedef uint u32;
typedef long i64;
typedef ulong u64;
typedef float f32;
#ifdef cl_khr_fp64
typedef double f64;
#endif
typedef uint2 u32x2;
typedef uint4 u32x4;

// PoCL parses Clang's declarations of all functions for all vectors before each program, which takes half of the compile time.
// These declarations replace them: the functions that kernels call, for scalars.
#ifdef DECLARES_FUNCTIONS
#define DECLARED __attribute__((overloadable))
#define PURE DECLARED __attribute__((const))
PURE size_t get_local_id(uint dimension);
PURE size_t get_group_id(uint dimension);
PURE size_t get_num_groups(uint dimension);
DECLARED __attribute__((convergent)) void barrier(cl_mem_fence_flags flags);
DECLARED f32 vload_half(size_t place, const half *p);
DECLARED void vstore_half_rte(f32 v, size_t place, half *p);

#define OF_NUMBERS(T) \
    PURE T mul_hi(T, T); \
    PURE T clz(T);
OF_NUMBERS(char)
OF_NUMBERS(u8)
OF_NUMBERS(short)
OF_NUMBERS(u16)
OF_NUMBERS(i32)
OF_NUMBERS(u32)
OF_NUMBERS(i64)
OF_NUMBERS(u64)

#define OF_SHARED(SPACE, T) \
    DECLARED T atomic_add(volatile SPACE T *, T); \
    DECLARED T atomic_or(volatile SPACE T *, T); \
    DECLARED T atomic_max(volatile SPACE T *, T); \
    DECLARED T atomic_cmpxchg(volatile SPACE T *, T, T);
OF_SHARED(__global, i32)
OF_SHARED(__global, u32)
OF_SHARED(__local, i32)
OF_SHARED(__local, u32)

#define OF_FLOATS(T) \
    PURE T exp(T); \
    PURE T exp2(T); \
    PURE T expm1(T); \
    PURE T log(T); \
    PURE T log2(T); \
    PURE T log1p(T); \
    PURE T sqrt(T); \
    PURE T sin(T); \
    PURE T cos(T); \
    PURE T tanh(T); \
    PURE T erf(T); \
    PURE T log10(T); \
    PURE T tan(T); \
    PURE T asin(T); \
    PURE T acos(T); \
    PURE T atan(T); \
    PURE T sinh(T); \
    PURE T cosh(T); \
    PURE T asinh(T); \
    PURE T acosh(T); \
    PURE T atanh(T); \
    PURE T erfc(T); \
    PURE T atan2(T, T); \
    PURE T fabs(T); \
    PURE T floor(T); \
    PURE T ceil(T); \
    PURE T trunc(T); \
    PURE T rint(T); \
    PURE T fmod(T, T); \
    PURE T pow(T, T); \
    PURE T fmax(T, T); \
    PURE T fma(T, T, T); \
    PURE T ldexp(T, i32); \
    DECLARED T frexp(T, i32 *);
OF_FLOATS(f32)
#ifdef cl_khr_fp64
OF_FLOATS(f64)
#endif
#undef DECLARED
#undef PURE
#undef OF_NUMBERS
#undef OF_SHARED
#undef OF_FLOATS
#endif

#ifdef SUB_GROUP
#define WAVE_OF_KERNEL __attribute__((intel_reqd_sub_group_size(SUB_GROUP)))
#else
#define WAVE_OF_KERNEL
#endif
// NVIDIA's compiler divides registers among groups only for kernels that do not declare their size.
#if defined(AT_ONCE) && defined(__NV_CL_C_VERSION)
#define SIZE_OF_KERNEL
#else
#define SIZE_OF_KERNEL __attribute__((reqd_work_group_size(THREADS, 1, 1)))
#endif
#define KERNEL(name) __kernel SIZE_OF_KERNEL WAVE_OF_KERNEL void name
#ifdef __NV_CL_C_VERSION
// NVIDIA's compiler passes structs in memory to functions that are not inlined. A union that was written as a vector is also in
// memory, if 16-bit elements are read from it behind a branch; a union that was written as numbers is not.
#define FUNCTION static inline __attribute__((always_inline))
#define WORD_PARTS u32 parts[(sizeof(WORD) + 3) / 4];
#define SET_WORD(r, word) set_parts((r).parts, word)
FUNCTION __attribute__((overloadable)) void set_parts(u32 *parts, u32 word) { parts[0] = word; }
FUNCTION __attribute__((overloadable)) void set_parts(u32 *parts, u32x2 word) {
    parts[0] = word.x;
    parts[1] = word.y;
}
FUNCTION __attribute__((overloadable)) void set_parts(u32 *parts, u32x4 word) {
    parts[0] = word.x;
    parts[1] = word.y;
    parts[2] = word.z;
    parts[3] = word.w;
}
#else
#define FUNCTION static inline
#endif
// Functions that get a pointer to local memory. PoCL 3.1 gives all groups the same copy of a kernel's local memory, if a function
// always gets it as the same argument. Its optimiser finds this out, unless the function is inlined first.
#if defined(POCL_DEVICE_ADDRESS_BITS) && defined(__OPTIMIZE__)
#define LOCAL_FUNCTION FUNCTION __attribute__((always_inline))
#else
#define LOCAL_FUNCTION FUNCTION
#endif
#define GLOBAL __global
// An argument whose address is taken.
#define ARGUMENT(type) const type
#define LOCAL __local
#define SHARED(type, name, n) __local type name[n]
#define SHARED_GIVEN SHARED
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
// The group also sees its writes to global memory.
#define GLOBAL_BARRIER() barrier(CLK_GLOBAL_MEM_FENCE)
// A pointer from an address that was read from memory.
#define POINTER(type, bits) ((GLOBAL type *)(u64)(bits))
#define CONTRACT_OFF _Pragma("OPENCL FP_CONTRACT OFF")

#define LANE ((int)get_local_id(0))
#define GROUP ((i64)get_group_id(0))
#define GROUP_Y ((i64)get_group_id(1))
#define GROUPS ((i64)get_num_groups(0))
#define GROUPS_Y ((i64)get_num_groups(1))

#define as_f32(x) as_float((u32)(x))
#define as_u32(x) as_uint((f32)(x))
#define mul_hi_u32(a, b) mul_hi((u32)(a), (u32)(b))
#define leading_zeros_u64(x) ((int)clz((u64)(x)))
#define raise_to(p, value) atomic_max((volatile GLOBAL u32 *)(p), (u32)(value))
#define compare_and_swap(p, expected, value) atomic_cmpxchg((volatile GLOBAL u32 *)(p), (u32)(expected), (u32)(value))
// Changes a number in global memory, and returns its previous value.
#define add_to(p, value) atomic_add((volatile GLOBAL u32 *)(p), (u32)(value))
#define or_to(p, bits) atomic_or((volatile GLOBAL u32 *)(p), (u32)(bits))
// Writes a value to memory where other threads may write the same value.
#define write_alike(p, value) (*(p) = (value))
// Adds to a number in local memory, and returns its previous value.
#define add_local(p, value) atomic_add((volatile LOCAL u32 *)(p), (u32)(value))
#define or_local(p, bits) atomic_or((volatile LOCAL u32 *)(p), (u32)(bits))
#define compare_and_swap_local(p, expected, value) \
    atomic_cmpxchg((volatile LOCAL u32 *)(p), (u32)(expected), (u32)(value))

// Threads that run in step, and can exchange registers; 1 where this is not known.
#ifdef __NV_CL_C_VERSION
#define WAVE 32
// The value of the thread whose lane differs by the bit `by`. All threads of the wave must call this together.
FUNCTION u32 wave_xor(u32 v, int by) {
    u32 other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(other) : "r"(v), "r"(by));
    return other;
}
#elif defined(SUB_GROUP)
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
#define WAVE SUB_GROUP
FUNCTION u32 wave_xor(u32 v, int by) { return sub_group_shuffle_xor(v, (u32)by); }
#else
#define WAVE 1
#endif

// Loads and stores of data that the cache need not keep. A kernel never loads in this way what it has stored itself.
#ifdef __NV_CL_C_VERSION
#define ONCE __attribute__((overloadable))
FUNCTION ONCE u16 load_once(GLOBAL const u16 *p) {
    u16 v;
    asm volatile("ld.global.cs.u16 %0, [%1];" : "=h"(v) : "l"((u64)p));
    return v;
}
FUNCTION ONCE u32 load_once(GLOBAL const u32 *p) {
    u32 v;
    asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(v) : "l"((u64)p));
    return v;
}
FUNCTION ONCE u32x2 load_once(GLOBAL const u32x2 *p) {
    u32 x, y;
    asm volatile("ld.global.cs.v2.u32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "l"((u64)p));
    return (u32x2)(x, y);
}
FUNCTION ONCE u32x4 load_once(GLOBAL const u32x4 *p) {
    u32 x, y, z, w;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"((u64)p));
    return (u32x4)(x, y, z, w);
}
FUNCTION ONCE void store_once(GLOBAL u16 *p, u16 v) { asm volatile("st.global.cs.u16 [%0], %1;" : : "l"((u64)p), "h"(v)); }
FUNCTION ONCE void store_once(GLOBAL u32 *p, u32 v) { asm volatile("st.global.cs.u32 [%0], %1;" : : "l"((u64)p), "r"(v)); }
FUNCTION ONCE void store_once(GLOBAL u32x2 *p, u32x2 v) {
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" : : "l"((u64)p), "r"(v.x), "r"(v.y));
}
FUNCTION ONCE void store_once(GLOBAL u32x4 *p, u32x4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" : : "l"((u64)p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w));
}
#else
#define load_once(p) (*(p))
#define store_once(p, v) (*(p) = (v))
#endif

#define exp_ exp
#define expm1_ expm1
#define log_ log
#define log2_ log2
#define log1p_ log1p
#define sqrt_ sqrt
#define sin_ sin
#define cos_ cos
// Exactly 1 where the result rounds to 1. Some drivers return slightly less, even for infinity.
#define tanh_(x) (fabs(x) > 20 ? ((x) > 0 ? 1 : -1) : tanh(x))
#define erf_ erf
#define exp2_ exp2
#define log10_ log10
#define tan_ tan
#define asin_ asin
#define acos_ acos
#define atan_ atan
#define sinh_ sinh
#define cosh_ cosh
#define asinh_ asinh
#define acosh_ acosh
#define atanh_ atanh
#define erfc_ erfc
#define atan2_ atan2
#define floor_ floor
#define ceil_ ceil
#define trunc_ trunc
#define round_ rint
#define fmod_ fmod
#define powr_ pow
// The other number, if one of two is NaN.
#define fmax_ fmax
#define fabs_ fabs
#define fma_ fma
#define frexp_ frexp
#define ldexp_ ldexp

#ifdef __NV_CL_C_VERSION
// The driver defines NV_COMPUTE, which the compiler does not.
#include "ptx.h"

#if NV_COMPUTE >= 70
// Increments a counter, which returns to 0 after `most`. Returns the previous value.
FUNCTION u32 count_to(GLOBAL u32 *p, u32 most) {
    u32 was;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(was) : "l"((u64)p), "r"(most) : "memory");
    return was;
}
#endif

// A position in local memory, as instructions take it, in bytes.
typedef u32 LocalPlace;
#define local_place(p) ((LocalPlace)(u64)(p))

// The caches of copies to local memory: all. In a program of OpenCL, on an H100, copies past the first cache take twice the time.
#define COPY_CACHE "ca"
#else
#define exp2_near_ exp2
#define log2_near_ log2
FUNCTION f32 f16_to_f32(u16 h) { return vload_half(0, (const half *)&h); }

FUNCTION u16 f32_to_f16(f32 v) {
    u16 h;
    vstore_half_rte(v, 0, (half *)&h);
    return h;
}
#endif

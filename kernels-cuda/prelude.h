// CUDA C++ as NVRTC compiles it, compute capability 7.5 and later: the vocabulary in which the kernels are written.

typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef uint2 u32x2;
typedef uint4 u32x4;

// The prefix keeps an entry apart from the functions that CUDA has, such as norm; the driver knows it.
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS) isograd_##name
#define FUNCTION static __device__ __forceinline__
#define GLOBAL
#define LOCAL
#define SHARED(type, name, n) __shared__ type name[n]
#define BARRIER() __syncthreads()
// An address that was read from memory, as a pointer.
#define POINTER(type, bits) ((GLOBAL type *)(u64)(bits))
// There is no pragma: the driver compiles a source that has this as a line without contraction. fma_ stays what it is.
#define CONTRACT_OFF

#define LANE ((int)threadIdx.x)
#define GROUP ((i64)blockIdx.x)
#define GROUP_Y ((i64)blockIdx.y)
#define GROUP_Z ((i64)blockIdx.z)
#define GROUPS ((i64)gridDim.x)
#define GROUPS_Y ((i64)gridDim.y)

#define as_f32(x) __uint_as_float((u32)(x))
#define as_u32(x) __float_as_uint((f32)(x))
#define mul_hi_u32(a, b) __umulhi((u32)(a), (u32)(b))
#define leading_zeros_u64(x) __clzll((i64)(x))
#define raise_to(p, value) atomicMax((u32 *)(p), (u32)(value))
#define compare_and_swap(p, expected, value) atomicCAS((u32 *)(p), (u32)(expected), (u32)(value))

// Threads that run in step, and can read a register of another.
#define WAVE 32
// The value of the thread `by` lanes up; all threads of the wave call it together.
#define wave_down(v, by) __shfl_down_sync(0xffffffffu, (u32)(v), by)

// Overloaded for f32 and f64, and from outside: rows have functions of the same names.
#define exp_ ::exp
// Of f32 near 0, where the result matters, as good as exp_, and cheaper: an error that grows with the argument.
#define exp_near_ __expf
#define expm1_ ::expm1
#define log_ ::log
#define log1p_ ::log1p
#define sqrt_ ::sqrt
#define sin_ ::sin
#define cos_ ::cos
#define tanh_ ::tanh
#define erf_ ::erf
#define floor_ ::floor
#define ceil_ ::ceil
#define trunc_ ::trunc
#define round_ ::rint
#define fmod_ ::fmod
#define powr_ ::pow
#define fabs_ ::fabs
#define fma_ ::fma
#define frexp_ ::frexp
#define ldexp_ ::ldexp

#ifdef SIMT
// The emulator of tools/simt, whose compiler knows no PTX.
#define f16_to_f32(h) simt_f16_to_f32(h)
#define f32_to_f16(v) simt_f32_to_f16(v)
#else
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
#endif

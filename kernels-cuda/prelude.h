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
// A source may say how many groups shall run at once on a multiprocessor: they share its registers.
#ifdef AT_ONCE
#define BOUNDS __launch_bounds__(THREADS, AT_ONCE)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif
#define KERNEL(name) extern "C" __global__ void BOUNDS isograd_##name
#define FUNCTION static __device__ __forceinline__
#define LOCAL_FUNCTION FUNCTION
#define GLOBAL
// An argument whose address is taken: it stays where it is, and is not copied by every thread.
#define ARGUMENT(type) const __grid_constant__ type
#define LOCAL
#define SHARED(type, name, n) __shared__ type name[n]
// At most one in a kernel: the launch gives its memory.
#define SHARED_GIVEN(type, name, n) extern __shared__ type name[]
#define BARRIER() __syncthreads()
#ifndef SIMT
#define WAVE_BARRIER() __syncwarp()
#endif
// An address that was read from memory, as a pointer.
#define POINTER(type, bits) ((GLOBAL type *)(u64)(bits))
// There is no pragma: the driver compiles a source that has this as a line without contraction. fma_ stays what it is.
#define CONTRACT_OFF

// A launch that follows another may start while that one ends. Before it reads what that one writes, and before it writes at
// all, it waits; until the other says that the next may start, it does not.
#if __CUDA_ARCH__ >= 900 && !defined(SIMT)
#define AWAIT_PREVIOUS() asm volatile("griddepcontrol.wait;" ::: "memory")
#define LET_NEXT_START() asm volatile("griddepcontrol.launch_dependents;")
#endif

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
// To a number in local memory; returns what it was.
#define add_local(p, value) atomicAdd((u32 *)(p), (u32)(value))
#define or_local(p, bits) atomicOr((u32 *)(p), (u32)(bits))
#define compare_and_swap_local compare_and_swap

// Returns what it was; the next is one more, or 0 after `most`.
#define count_to(p, most) atomicInc((u32 *)(p), (u32)(most))

// Threads that run in step, and can read a register of another.
#define WAVE 32
// The value of the thread whose lane differs by the bit `by`; all threads of the wave call it together.
#define wave_xor(v, by) __shfl_xor_sync(0xffffffffu, (u32)(v), by)

// Loads and stores what the cache need not keep.
#define load_once(p) __ldcs(p)
#define store_once(p, v) __stcs(p, v)

// Overloaded for f32 and f64, and from outside: rows have functions of the same names.
#define exp_ ::exp
#define expm1_ ::expm1
#define log_ ::log
#define log2_ ::log2
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
// The number, if one of two is NaN.
#define fmax_ ::fmax
#define fabs_ ::fabs
#define fma_ ::fma
#define frexp_ ::frexp
#define ldexp_ ::ldexp

#ifdef SIMT

// The emulator of tools/simt, whose compiler knows no PTX.
#define HAS_BF16
#define f16_to_f32(h) simt_f16_to_f32(h)
#define f32_to_f16(v) simt_f32_to_f16(v)
#define f32_to_bf16(v) simt_f32_to_bf16(v)
#define exp2_near_(x) simt_exp2_near(x)
#define log2_near_ log2_
#define write_alike(p, value) simt_store_relaxed(p, value)
#define leave_word(p, word) simt_store_relaxed(p, word)
#define left_word(p) simt_load_relaxed(p)
typedef u64 LocalPlace;
#define local_place(p) ((u64)(p))

#else

// Writes what other threads may write there too: the same value.
#define write_alike(p, value) (*(p) = (value))

#define NV_COMPUTE (__CUDA_ARCH__ / 10)
#include "ptx.h"

#define divide_near_(a, b) __fdividef(a, b)

#if __CUDA_ARCH__ >= 900
// Memory adds to an element, or to those of 16 bytes, what other threads add to, too.
#define HAS_ADDS
#define ADD_16(dtype) \
    FUNCTION void add_any_##dtype(GLOBAL u16 *p, u16 v) { \
        asm volatile("red.global.add.noftz." #dtype " [%0], %1;" : : "l"(p), "h"(v) : "memory"); \
    } \
    FUNCTION void add_word_any_##dtype(GLOBAL u16 *p, u32x4 w) { \
        asm volatile("red.global.add.noftz.v4." #dtype "x2 [%0], {%1, %2, %3, %4};" \
                     : \
                     : "l"(p), "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w) \
                     : "memory"); \
    }
ADD_16(f16)
ADD_16(bf16)

FUNCTION void add_any_f32(GLOBAL f32 *p, f32 v) { asm volatile("red.global.add.f32 [%0], %1;" : : "l"(p), "f"(v) : "memory"); }

FUNCTION void add_word_any_f32(GLOBAL f32 *p, u32x4 w) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "f"(as_f32(w.x)), "f"(as_f32(w.y)), "f"(as_f32(w.z)), "f"(as_f32(w.w))
                 : "memory");
}
#endif

// Of local memory, as instructions take it; distances are in bytes.
typedef u32 LocalPlace;
#define local_place(p) ((u32)__cvta_generic_to_shared(p))

#endif

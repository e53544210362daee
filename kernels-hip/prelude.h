// The dialect of the kernels in HIP C++, for HIPRTC of ROCm 5 and later. The differences between AMD's compilers, the emulator of
// tools/simt and NVIDIA's NVRTC are in one place below.

#if defined(AT_ONCE) && defined(__CUDA_ARCH__)
#define BOUNDS __launch_bounds__(THREADS, AT_ONCE)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif
#include "cpp.h"

// Local memory whose size the launch sets. At most one in a kernel. All kernels use the same type, so that they may share a
// program.
#define SHARED_GIVEN(type, name, n) \
    extern __shared__ __attribute__((aligned(16))) u8 isograd_given[]; \
    type *name = (type *)isograd_given

// Definitions for each compiler:
//
// WAVE: threads that run in step, and can exchange registers
// wave_xor: the value of the thread whose lane differs by the bit `by`; all threads of the wave must call it together
// load_once, store_once: accesses to data that the cache need not keep
// write_alike: writes a value to memory where other threads may write the same value
// exp2_near_: 2^x of f32; the error grows with the argument, and subnormal results may be 0
// log2_near_: the base 2 logarithm, to 2^-22 from 0.5 to 2
// show_u16, show_u32, seen_u16 .. seen_u32x4: elements and words that groups of a running launch write and read; a word may be read
// while some of its elements are written
// ARGUMENT: an argument whose address is taken
// POINTER: a pointer from an address that was read from memory
#if defined(SIMT)

typedef uint2 u32x2;
typedef uint4 u32x4;
#include "simt.h"
#define ARGUMENT(type) const type
#define POINTER(type, bits) ((type *)(u64)(bits))
#define WAVE SIMT_WAVE
#define wave_xor(v, by) __shfl_xor((u32)(v), by)
#define load_once(p) (*(p))
#define store_once(p, v) (*(p) = (v))

#elif defined(__CUDA_ARCH__)

typedef uint2 u32x2;
typedef uint4 u32x4;
#define ARGUMENT(type) const __grid_constant__ type
#define POINTER(type, bits) ((type *)(u64)(bits))
#define WAVE 32
#define wave_xor(v, by) __shfl_xor_sync(0xffffffffu, (u32)(v), by)
#define load_once(p) __ldcs(p)
#define store_once(p, v) __stcs(p, v)
#define write_alike(p, value) (*(p) = (value))

#define NV_COMPUTE (__CUDA_ARCH__ / 10)
#include "ptx.h"

#else

// HIP's own vectors have constructors, which union members cannot have. ROCm 5 leaves the compiler's vectors in memory if their
// parts are read.
struct alignas(8) u32x2 {
    u32 x, y;
};
struct alignas(16) u32x4 {
    u32 x, y, z, w;
};
#define ARGUMENT(type) const type
// The cast to global memory tells the compiler the kind of memory.
#define POINTER(type, bits) ((type *)(__attribute__((address_space(1))) type *)(u64)(bits))
// CDNA (and its ancestors) or RDNA. No macro for this exists in every version of the compiler.
#ifdef __GFX9__
#define WAVE 64
#else
#define WAVE 32
#endif
#define wave_xor(v, by) __shfl_xor((u32)(v), by)
// The bytes of a word, as types that the compiler loads as a whole.
template <class Any> struct Halves {
    typedef u16 type __attribute__((ext_vector_type(sizeof(Any) / 2)));
};
template <class Any> FUNCTION Any load_once(const Any *p) {
    return __builtin_bit_cast(Any, __builtin_nontemporal_load((const typename Halves<Any>::type *)p));
}
template <class Any> FUNCTION void store_once(Any *p, Any v) {
    typedef typename Halves<Any>::type Bits;
    __builtin_nontemporal_store(__builtin_bit_cast(Bits, v), (Bits *)p);
}
#define write_alike(p, value) (*(p) = (value))
#define show_u16(p, v) __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
#define show_u32 show_u16
#define seen_u16(p) __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT)
#define seen_u32 seen_u16
FUNCTION u32x2 seen_u32x2(const u32x2 *p) { return __builtin_bit_cast(u32x2, seen_u16((const u64 *)p)); }
FUNCTION u32x4 seen_u32x4(const u32x4 *p) {
    u32x2 a = seen_u32x2((const u32x2 *)p), b = seen_u32x2((const u32x2 *)p + 1);
    return {a.x, a.y, b.x, b.y};
}
// Without this, arithmetic moves behind the next barrier, and its operands take twice the registers until then.
#define COMPUTED(v) asm volatile("" : "+v"(v))

FUNCTION f32 f16_to_f32(u16 h) { return (f32)__builtin_bit_cast(_Float16, h); }
FUNCTION u16 f32_to_f16(f32 v) { return __builtin_bit_cast(u16, (_Float16)v); }

#if __has_builtin(__builtin_amdgcn_exp2f)
#define exp2_near_(x) __builtin_amdgcn_exp2f(x)
#else
extern "C" __device__ __attribute__((const)) f32 __ocml_native_exp2_f32(f32);
#define exp2_near_(x) __ocml_native_exp2_f32(x)
#endif
#define log2_near_ log2_

#endif

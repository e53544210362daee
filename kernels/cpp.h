// What CUDA C++ and HIP C++ have in common, for their preludes.

typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

// The prefix avoids clashes of entries with the vendors' own functions, such as norm. The driver adds it to names.
#define KERNEL(name) extern "C" __global__ void BOUNDS isograd_##name
#define FUNCTION static __device__ __forceinline__
#define LOCAL_FUNCTION FUNCTION
#define GLOBAL
#define LOCAL
#define SHARED(type, name, n) __shared__ type name[n]
#define BARRIER() __syncthreads()
// The group also sees its writes to global memory.
#define GLOBAL_BARRIER() __syncthreads()
// No pragma for this is known to all compilers. The driver compiles a source that has this as a line without contraction. fma_ is not
// affected.
#define CONTRACT_OFF

#define LANE ((int)threadIdx.x)
#define GROUP ((i64)blockIdx.x)
#define GROUP_Y ((i64)blockIdx.y)
#define GROUPS ((i64)gridDim.x)
#define GROUPS_Y ((i64)gridDim.y)

#define as_f32(x) __uint_as_float((u32)(x))
#define as_u32(x) __float_as_uint((f32)(x))
#define mul_hi_u32(a, b) __umulhi((u32)(a), (u32)(b))
#define leading_zeros_u64(x) __clzll((i64)(x))
#define raise_to(p, value) atomicMax((u32 *)(p), (u32)(value))
// These change a number in local or global memory, and return its previous value.
#define compare_and_swap(p, expected, value) atomicCAS((u32 *)(p), (u32)(expected), (u32)(value))
#define compare_and_swap_local compare_and_swap
#define add_local(p, value) atomicAdd((u32 *)(p), (u32)(value))
#define or_local(p, bits) atomicOr((u32 *)(p), (u32)(bits))
#define add_to(p, value) atomicAdd((u32 *)(p), (u32)(value))
#define or_to(p, bits) atomicOr((u32 *)(p), (u32)(bits))

// Overloads for f32 and f64. The global scope avoids the functions of pointwise rows, which have the same names.
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
#define exp2_ ::exp2
#define log10_ ::log10
#define tan_ ::tan
#define asin_ ::asin
#define acos_ ::acos
#define atan_ ::atan
#define sinh_ ::sinh
#define cosh_ ::cosh
#define asinh_ ::asinh
#define acosh_ ::acosh
#define atanh_ ::atanh
#define erfc_ ::erfc
#define atan2_ ::atan2
#define floor_ ::floor
#define ceil_ ::ceil
#define trunc_ ::trunc
#define round_ ::rint
#define fmod_ ::fmod
#define powr_ ::pow
// The other number, if one of two is NaN.
#define fmax_ ::fmax
#define fabs_ ::fabs
#define fma_ ::fma
#define frexp_ ::frexp
#define ldexp_ ::ldexp

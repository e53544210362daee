// The dialect of the kernels in CUDA C++, for NVRTC, compute capability 7.5 and later.

// AT_ONCE: groups that a multiprocessor should run together; it limits the registers of a thread.
#ifdef AT_ONCE
#define BOUNDS __launch_bounds__(THREADS, AT_ONCE)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif
#include "cpp.h"

typedef uint2 u32x2;
typedef uint4 u32x4;

// An argument whose address is taken. It stays in constant memory; threads do not copy it.
#define ARGUMENT(type) const __grid_constant__ type
// Local memory whose size the launch sets. At most one in a kernel.
#define SHARED_GIVEN(type, name, n) extern __shared__ type name[]
#ifndef SIMT
#define WAVE_BARRIER() __syncwarp()
#endif
// A pointer from an address that was read from memory.
#define POINTER(type, bits) ((GLOBAL type *)(u64)(bits))

// A launch may start while the previous one ends. AWAIT_PREVIOUS comes before it reads results of the previous launch, and before
// any write. It waits for the end of the previous launch. LET_NEXT_START lets the next launch start. Before AWAIT_PREVIOUS a kernel may
// read what none of the launches that overlap writes: the first of them started when all before it had ended.
#if __CUDA_ARCH__ >= 900 && !defined(SIMT)
#define AWAIT_PREVIOUS() asm volatile("griddepcontrol.wait;" ::: "memory")
#define LET_NEXT_START() asm volatile("griddepcontrol.launch_dependents;")
#endif

// Increments a counter, which returns to 0 after `most`. Returns the previous value.
#define count_to(p, most) atomicInc((u32 *)(p), (u32)(most))

// Threads that run in step, and can exchange registers.
#define WAVE 32
// The value of the thread whose lane differs by the bit `by`. All threads of the wave must call this together.
#define wave_xor(v, by) __shfl_xor_sync(0xffffffffu, (u32)(v), by)

// Loads and stores of data that the cache need not keep.
#define load_once(p) __ldcs(p)
#define store_once(p, v) __stcs(p, v)

#ifdef SIMT

// For the emulator of tools/simt, whose compiler has no PTX.
#include "simt.h"
#define HAS_BF16
#define f32_to_bf16(v) simt_f32_to_bf16(v)
#define leave_word(p, word) simt_store_relaxed(p, word)
#define left_word(p) simt_load_relaxed(p)
typedef u64 LocalPlace;
#define local_place(p) ((u64)(p))

#else

// Writes a value to memory where other threads may write the same value.
#define write_alike(p, value) (*(p) = (value))

#define NV_COMPUTE (__CUDA_ARCH__ / 10)
#include "ptx.h"

#define divide_near_(a, b) __fdividef(a, b)

#if __CUDA_ARCH__ >= 900
// Atomic additions in memory, to an element, or to the elements of 16 bytes.
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

// A position in local memory, as instructions take it, in bytes.
typedef u32 LocalPlace;
#define local_place(p) ((u32)__cvta_generic_to_shared(p))

// The caches of copies to local memory: not the first, which nothing reads again.
#define COPY_CACHE "cg"

#endif

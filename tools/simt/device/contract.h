// What the runtime and the kernels it runs know of each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// What the running thread is. The runtime writes the thread and its lane at each switch.
struct simt_context {
    uint3 thread;
    unsigned lane;
    uint3 block;
    uint3 block_extent, grid_extent;
    void *dynamic_shared;
    // Of this OS thread, kept from block to block; see matrix.h.
    void *copies;
};

// One lane's part in an operation of its wave. `run` sees those of all lanes at once, null where a lane takes no part.
struct simt_request {
    const char *name;
    unsigned flags;
    uint64_t mask;
    const void *in;
    void *out;
    unsigned size;
    int how, argument, width;
    void (*run)(simt_request *const *lanes, unsigned wave);
    // The call site; null: the runtime takes its own return address.
    const void *site;
};

// No mask was given (HIP); and: orders memory within the wave.
enum { SIMT_IMPLICIT = 1, SIMT_ORDERS = 2 };

// A peek is a read that may meet memory that nobody has written, as that is NaN where it matters.
enum simt_access_kind { SIMT_READ, SIMT_WRITE, SIMT_ATOMIC, SIMT_PEEK };
enum simt_barrier_kind { SIMT_SYNC, SIMT_COUNT, SIMT_ALL, SIMT_ANY };

struct simt_argument {
    unsigned size, is_pointer;
};

struct simt_kernel {
    const char *name;
    void (*call)(void *const *arguments);
    unsigned n_arguments, max_threads;
    const simt_argument *arguments;
};

// Every compiled program exports one under the name `simt_program`.
struct simt_description {
    unsigned wave;
    bool is_hip, is_checked;
    // Of the calling OS thread, so that its memory of static shared variables exists.
    char *(*touch)();
};

#define SIMT_EXPORT extern "C" __attribute__((visibility("default")))
extern "C" __attribute__((visibility("default"), tls_model("initial-exec"))) __thread simt_context simt_self;
SIMT_EXPORT int simt_barrier(int kind, int predicate, const void *site);
SIMT_EXPORT void simt_together(simt_request *request);
SIMT_EXPORT void simt_access(const void *p, size_t bytes, int kind, const void *site);
SIMT_EXPORT void simt_spin();
SIMT_EXPORT void simt_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

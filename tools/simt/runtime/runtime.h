// Compiles, loads and launches kernels on the CPU, and gives them memory. Failures are thrown.
#pragma once
#include "../device/contract.h"
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace simt {

// Why something was refused, or what a kernel did wrong, in words.
struct Failure {
    std::string text;
};

// The environment's `SIMT_*`, read once; the README says what they mean.
struct Options {
    int threads, order;
    bool is_strict, checks_memory_is_set, is_checked;
};
Options &options();

// The first bytes of a digest of the tool's own sources: what was compiled by another build is another thing.
const char *build();

// ---- memory

// Device memory: filled with 0xff (NaN, -1), its end at a page that cannot be touched. Null if there is no more.
void *allocate(size_t bytes);
// Throws if `p` is no allocation, or a kernel has written behind it.
void release(void *p);
// Throws unless all bytes are within one allocation. What the host writes counts as set.
void check_range(const void *p, size_t bytes, bool writes);

struct Allocation {
    void *at;
    size_t bytes;
};
// The allocation that holds this address; `at` is null if there is none.
Allocation allocation_of(const void *p);

// ---- programs

struct Source {
    std::string text, name;
    bool is_hip;
    int wave;
    // As NVRTC and HIPRTC spell them.
    std::vector<std::string> options;
    std::vector<std::pair<std::string, std::string>> headers;
};

// A shared object's bytes. Throws the compiler's log.
std::string compile(const Source &source);

struct Program;
// From the bytes that `compile` gave. Throws if they are of another build.
std::shared_ptr<Program> load(const std::string &bytes);
// Null if there is none of this name.
const simt_kernel *find_kernel(const Program &program, const char *name);
// Bytes of static shared memory: exact in a checked program, all of it together in a fast one.
size_t static_shared(const Program &program);

struct Geometry {
    uint3 grid, block;
    size_t dynamic_shared;
};
// Runs a kernel to its end. `shared_limit` holds for static and dynamic shared memory together.
void launch(Program &program, const simt_kernel *kernel, const Geometry &geometry, size_t shared_limit, void *const *arguments);

} // namespace simt

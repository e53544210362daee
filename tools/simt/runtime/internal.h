// What the parts of the runtime share.
#pragma once
#include "runtime.h"
#include <atomic>
#include <csetjmp>
#include <map>
#include <mutex>

namespace simt {

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- what the checks keep of memory

// Who touched memory last, and when: `step` counts barriers and blocks, `clock` the thread's synchronisations within its wave.
struct Touch {
    uint32_t step, clock, site;
    uint16_t thread;
    bool is_atomic;
    uint8_t bytes;
};

// Of 4, 2 or 1 neighbouring bytes.
struct Cell {
    Touch write, read, other_read;
};

struct Region {
    uintptr_t low = 0, high = 0;
    std::string name;
    bool is_shared = false;
    // Log2 of the bytes of a cell.
    unsigned shift = 2;
    std::vector<Cell> cells;
    std::vector<bool> is_set;

    bool holds(uintptr_t at, size_t bytes) const { return at >= low && at + bytes <= high; }
};

struct Block {
    void *map;
    size_t mapped;
    Region region;
};

// All allocations by address, with the lock that guards them.
struct Memory {
    std::mutex lock;
    std::map<uintptr_t, std::unique_ptr<Block>> blocks;

    // With the lock held.
    Block *owner(uintptr_t at);
    // The allocation whose mapping, guard pages and all, holds the address.
    Block *neighbour(uintptr_t at);
};
Memory &memory();

// ---- programs

// What the compiler's instrumentation registers for each global; the layout is LLVM's.
struct AsanGlobal {
    uintptr_t begin, size, size_with_redzone;
    const char *name, *module;
    uintptr_t has_dynamic_init;
    void *location;
    uintptr_t odr_indicator;
};

struct Program {
    void *handle = nullptr;
    std::string path;
    uintptr_t base = 0;
    const simt_description *description = nullptr;
    size_t static_shared = 0;
    // Of a checked program: its globals by address, the shared ones among them, and at each 16 bytes of the section of
    // shared memory the variable there.
    std::vector<Region> globals;
    Region shared;
    std::vector<Region *> slots;

    ~Program();
    Region *global_at(uintptr_t at);
    // The shared variable at this address of the section; null in a gap.
    Region *shared_at(uintptr_t at) { return slots[(at - shared.low) / 16]; }
};

// The calling OS thread's copy of a program's thread-local variables.
struct Local {
    char *at;
    size_t bytes;
};
Local local_of(const Program &program);

// `kernel.cu:12 < kernel.cu:40`: the line of a site, and where it was inlined.
std::string line_of(const Program &program, uint32_t site);

// Runs a program, its errors into the file. The exit status, 127 if it could not be started.
int run(const std::vector<std::string> &command, const std::string &errors);
std::string read_file(const std::string &path);
bool write_file(const std::string &path, const std::string &bytes);
// A name for a temporary file of this process.
std::string temporary(const char *suffix);

// ---- running

constexpr size_t STACK = 64 << 10;
constexpr unsigned MOST_THREADS = 1024;
constexpr size_t MOST_DYNAMIC = 256 << 10, DYNAMIC_GUARD = 256 << 10;

enum class State : uint8_t { Ready, AtBarrier, AtWave, Done };

struct alignas(64) Thread {
    void *stack_pointer;
    simt_request *request;
    uint3 index;
    uint32_t number;
    const void *barrier;
    char *stack;
    int predicate;
    uint16_t lane, wave;
    State state;
};

// Which lanes live, and which of them wait in an operation.
struct Wave {
    uint64_t live, waiting;
};

// Clocks of the lanes of a wave: what each knows of each, and its own.
struct Clocks {
    uint32_t known[64][64];
    uint32_t own[64];
};

struct Launch {
    Program *program;
    const simt_kernel *kernel;
    void *const *arguments;
    Geometry geometry;
    uint64_t blocks;
    uint32_t threads;
    // The order of blocks, if it is not ascending.
    std::vector<uint64_t> order;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> has_failed{false};
    std::mutex lock;
    std::string failure;
};

// An OS thread that runs blocks.
struct Worker {
    Launch *launch = nullptr;
    Thread *current = nullptr;
    void *scheduler = nullptr;
    unsigned n = 0, wave = 32;
    // Threads of the block that were started, live, wait at the barrier and are done.
    unsigned next = 0, live = 0, arrived = 0, done = 0;
    std::vector<Thread> threads;
    std::vector<Wave> waves;
    std::vector<Thread *> at_barrier;
    // A ring of the threads that can run.
    std::vector<Thread *> ready;
    unsigned head = 0, tail = 0;
    std::vector<uint32_t> order;
    uint3 scan;
    int barrier_count = 0;
    const void *barrier_site = nullptr;
    char *stacks = nullptr;
    size_t n_stacks = 0;
    std::vector<char *> free_stacks;
    char *dynamic = nullptr;
    unsigned spins = 0;
    uint64_t random = 1;
    bool has_failed = false, is_scheduling = false;
    jmp_buf scheduling;

    // Of a checked program. A step begins with each block and each barrier.
    uint32_t step = 0, first_of_block = 0, first_of_launch = 0;
    std::vector<uint32_t> block_steps;
    std::vector<Clocks> clocks;
    Region dynamic_region;
    Region *recent[16] = {};

    bool can_run() const { return head != tail; }
};

// The worker of this OS thread while it runs a launch.
extern thread_local Worker *worker;

std::string name_of(const Worker &w, const Thread &t);
std::string line_of(const Worker &w, const void *site);
// Ends the launch with this report. Does not return.
[[noreturn]] void give_up(Worker &w, const std::string &report);
// Lets the clocks of the lanes in `lanes` meet.
void join_clocks(Worker &w, unsigned wave, uint64_t lanes);

} // namespace simt

// The checks of a checked program: each access is within an allocation, a variable or its own stack, to memory that was
// written, and ordered with the accesses of other threads.
#include "internal.h"
#include <algorithm>
#include <cstring>
#include <dlfcn.h>

namespace simt {

static const char *const VERBS[] = {"read", "write", "atomic access", "read"};

// An access of the running thread.
struct Access {
    uintptr_t at;
    size_t bytes;
    int kind;
    uint32_t site;
};

static std::string place_in(const Region &r, uintptr_t at) { return text("%s + %lld", r.name.c_str(), (long long)(at - r.low)); }

// Names the variable where the region is all of shared memory.
static std::string place(Worker &w, const Region &r, uintptr_t at) {
    Program &program = *w.launch->program;
    Region *variable = &r == &program.shared ? program.global_at(at) : nullptr;
    return place_in(variable ? *variable : r, at);
}

static std::string by_current(Worker &w, const Access &a) {
    return " by " + name_of(w, *w.current) + " at " + line_of(*w.launch->program, a.site);
}

[[noreturn]] static void report_race(Worker &w, const Region &r, const Access &a, const Touch &earlier, bool was_write) {
    const uint3 &extent = w.launch->geometry.block;
    Thread other = {};
    other.index = {earlier.thread % extent.x, earlier.thread / extent.x % extent.y, earlier.thread / (extent.x * extent.y)};
    other.wave = (uint16_t)(earlier.thread / w.wave);
    other.lane = (uint16_t)(earlier.thread % w.wave);
    bool same_block = earlier.step >= w.first_of_block;
    auto block = std::upper_bound(w.block_steps.begin(), w.block_steps.end(), earlier.step) - w.block_steps.begin() - 1;
    std::string report = "data race on " + place(w, r, a.at) + text(": %s of %zu bytes", VERBS[a.kind], a.bytes) + by_current(w, a);
    report += text("\n    against the %s%s by ", earlier.is_atomic ? "atomic " : "", was_write ? "write" : "read") + name_of(w, other);
    if (!same_block) report += text(" of block number %ld of the launch", (long)block);
    report += " at " + line_of(*w.launch->program, earlier.site);
    report += !same_block                     ? "\n    blocks have no order"
              : other.wave == w.current->wave ? "\n    same wave: no __syncwarp or __syncthreads between them"
                                              : "\n    no __syncthreads between them";
    give_up(w, report);
}

// Whether the earlier touch of another thread, of which at least one was a write, is unordered with this access.
static bool clashes(Worker &w, const Touch &earlier, int kind, bool is_shared) {
    if (!earlier.step || earlier.step < w.first_of_launch) return false;
    if (kind == SIMT_ATOMIC && earlier.is_atomic) return false;
    if (earlier.step < w.first_of_block) return !is_shared;
    const Thread &t = *w.current;
    if (earlier.thread == t.number || earlier.step != w.step) return false;
    bool is_known = earlier.thread / w.wave == t.wave && w.clocks[t.wave].known[t.lane][earlier.thread % w.wave] >= earlier.clock;
    return !is_known;
}

// Makes cells small enough for the access.
static void refine(Region &r, const Access &a) {
    unsigned parts = (unsigned)((a.at - r.low) | a.bytes) & 3, shift = parts & 1 ? 0 : parts ? 1 : 2;
    if (r.cells.empty()) r.shift = std::min(r.shift, shift);
    else if (r.shift > shift) {
        std::vector<Cell> finer(((r.high - r.low) >> shift) + 1);
        for (size_t i = 0; i < finer.size(); i++) finer[i] = r.cells[i >> (r.shift - shift)];
        r.cells.swap(finer);
        r.shift = shift;
    }
    r.cells.resize(((r.high - r.low) >> r.shift) + 1);
}

static void check_set(Worker &w, Region &r, const Access &a) {
    r.is_set.resize(r.high - r.low);
    for (size_t i = a.at - r.low; i < a.at + a.bytes - r.low; i++) {
        if ((a.kind == SIMT_READ || a.kind == SIMT_ATOMIC) && !r.is_set[i])
            give_up(w, "read of memory that was not written: " + place(w, r, a.at) + by_current(w, a));
        if (a.kind == SIMT_WRITE || a.kind == SIMT_ATOMIC) r.is_set[i] = true;
    }
}

// Whether 4 bytes that were not written look like what a compiler leaves free in a structure of a word of 4 bytes and one
// of 8, which it copies as a whole: the thread that wrote the neighbouring 4 wrote the 8 beside them as well.
static bool is_padding(const Worker &w, const Region &r, const Cell *cell) {
    const Cell *first = r.cells.data(), *last = first + r.cells.size() - 1;
    if (r.shift != 2 || cell == first || cell == last || (r.low + 4 * (size_t)(cell - first)) % 8 != 4) return false;
    const Touch &half = cell[-1].write;
    auto belongs = [&](const Touch &t) { return t.bytes == 8 && t.thread == half.thread && t.step == half.step; };
    return half.bytes == 4 && half.step >= w.first_of_block && (belongs(cell[1].write) || (cell - 1 != first && belongs(cell[-2].write)));
}

static void check_order(Worker &w, Region &r, const Access &a) {
    refine(r, a);
    const Thread &t = *w.current;
    bool reads_only = a.kind == SIMT_READ || a.kind == SIMT_PEEK, must_be_set = a.kind == SIMT_READ || a.kind == SIMT_ATOMIC;
    Touch now = {w.step, w.clocks[t.wave].own[t.lane], a.site, (uint16_t)t.number, a.kind == SIMT_ATOMIC, (uint8_t)std::min<size_t>(a.bytes, 255)};
    Cell *cell = &r.cells[(a.at - r.low) >> r.shift];
    for (Cell *last = &r.cells[(a.at + a.bytes - 1 - r.low) >> r.shift]; cell <= last; cell++) {
        if (clashes(w, cell->write, a.kind, r.is_shared)) report_race(w, r, a, cell->write, true);
        if (!reads_only) {
            if (clashes(w, cell->read, a.kind, r.is_shared)) report_race(w, r, a, cell->read, false);
            if (clashes(w, cell->other_read, a.kind, r.is_shared)) report_race(w, r, a, cell->other_read, false);
        }
        if (must_be_set && r.is_shared && cell->write.step < w.first_of_block && !is_padding(w, r, cell))
            give_up(w, "read of shared memory that was not written: " + place(w, r, a.at) + by_current(w, a));
        if (!reads_only) {
            cell->write = now;
        } else {
            if (cell->read.thread != now.thread || cell->read.step < w.first_of_block) cell->other_read = cell->read;
            cell->read = now;
        }
    }
    if (!r.is_shared && options().checks_memory_is_set) check_set(w, r, a);
}

// The region of an address, also of one just outside; null for tables that the compiler made.
static Region *region_of(Worker &w, const Access &a) {
    Program &p = *w.launch->program;
    if (a.at - (uintptr_t)(w.dynamic - DYNAMIC_GUARD) < MOST_DYNAMIC + 2 * DYNAMIC_GUARD) return &w.dynamic_region;
    if (p.shared.holds(a.at, 1)) {
        Region *variable = p.shared_at(a.at);
        if (variable) return variable->holds(a.at, a.bytes) ? &p.shared : variable;
    }
    Region *&recent = w.recent[a.at >> 12 & 15];
    if (recent && recent->holds(a.at, 1)) return recent;
    {
        std::lock_guard<std::mutex> guard(memory().lock);
        if (Block *block = memory().owner(a.at)) return recent = &block->region;
        if (Block *block = memory().neighbour(a.at)) return &block->region;
    }
    Region *global = p.global_at(a.at);
    // What a red zone may have.
    if (global && a.at < global->high + 64) return global;
    Dl_info info;
    if (dladdr((void *)a.at, &info) && (uintptr_t)info.dli_fbase == p.base) return nullptr;
    give_up(w, text("%s of %zu bytes at %p, which is no device memory (null, the host's or freed)", VERBS[a.kind], a.bytes,
                    (void *)a.at) + by_current(w, a));
}

static void check(Worker &w, const Access &a) {
    // threadIdx and the others.
    if (a.at - (uintptr_t)&simt_self < sizeof simt_self) return;
    if (a.at - (uintptr_t)w.stacks < STACK * (MOST_THREADS + 2)) {
        if (a.at - (uintptr_t)w.current->stack < STACK) return;
        give_up(w, text("%s of another thread's local variable", VERBS[a.kind]) + by_current(w, a));
    }
    Region *r = region_of(w, a);
    if (!r) return;
    if (!r->holds(a.at, a.bytes))
        give_up(w, text("out-of-bounds %s of %zu bytes at %s (size %zu)", VERBS[a.kind], a.bytes, place_in(*r, a.at).c_str(),
                        (size_t)(r->high - r->low)) + by_current(w, a));
    check_order(w, *r, a);
}

void join_clocks(Worker &w, unsigned wave, uint64_t lanes) {
    Clocks &c = w.clocks[wave];
    uint32_t joined[64] = {};
    for (uint64_t rest = lanes; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctzll(rest);
        for (unsigned other = 0; other < w.wave; other++)
            joined[other] = std::max(joined[other], lane == other ? c.own[other] : c.known[lane][other]);
    }
    for (uint64_t rest = lanes; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctzll(rest);
        memcpy(c.known[lane], joined, sizeof joined);
        c.own[lane]++;
    }
}

} // namespace simt

SIMT_EXPORT void simt_access(const void *p, size_t bytes, int kind, const void *site) {
    simt::Worker *w = simt::worker;
    // Initialisers of a program are no threads.
    if (!w || !w->current || !w->launch->program->description->is_checked || !bytes) return;
    simt::check(*w, {(uintptr_t)p, bytes, kind, (uint32_t)((uintptr_t)site - w->launch->program->base)});
}

// What the compiler calls before each access.
#define SIMT_SITE __builtin_return_address(0)
#define SIMT_ACCESSES(n) \
    SIMT_EXPORT void __asan_load##n(uintptr_t at) { simt_access((void *)at, n, SIMT_READ, SIMT_SITE); } \
    SIMT_EXPORT void __asan_store##n(uintptr_t at) { simt_access((void *)at, n, SIMT_WRITE, SIMT_SITE); }
SIMT_ACCESSES(1)
SIMT_ACCESSES(2)
SIMT_ACCESSES(4)
SIMT_ACCESSES(8)
SIMT_ACCESSES(16)
SIMT_EXPORT void __asan_loadN(uintptr_t at, size_t n) { simt_access((void *)at, n, SIMT_READ, SIMT_SITE); }
SIMT_EXPORT void __asan_storeN(uintptr_t at, size_t n) { simt_access((void *)at, n, SIMT_WRITE, SIMT_SITE); }
SIMT_EXPORT void *__asan_memcpy(void *to, const void *from, size_t n) {
    simt_access(from, n, SIMT_READ, SIMT_SITE);
    simt_access(to, n, SIMT_WRITE, SIMT_SITE);
    return memcpy(to, from, n);
}
SIMT_EXPORT void *__asan_memmove(void *to, const void *from, size_t n) {
    simt_access(from, n, SIMT_READ, SIMT_SITE);
    simt_access(to, n, SIMT_WRITE, SIMT_SITE);
    return memmove(to, from, n);
}
SIMT_EXPORT void *__asan_memset(void *to, int value, size_t n) {
    simt_access(to, n, SIMT_WRITE, SIMT_SITE);
    return memset(to, value, n);
}

// What the compiler calls where an operation has no defined result.
struct SourceLine {
    const char *file;
    unsigned line, column;
};
#define SIMT_UNDEFINED(name, what) \
    SIMT_EXPORT void __ubsan_handle_##name(const SourceLine *at, uintptr_t value, uintptr_t) { \
        simt_fail("undefined at %s:%u:%u: " what " (%lld)", at->file, at->line, at->column, (long long)value); \
    }
SIMT_UNDEFINED(out_of_bounds, "index outside of an array")
SIMT_UNDEFINED(divrem_overflow, "integer division by zero, or overflow")
SIMT_UNDEFINED(shift_out_of_bounds, "shift by a negative amount, or by all bits")
SIMT_UNDEFINED(float_cast_overflow, "float to integer out of range")

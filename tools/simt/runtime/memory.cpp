// Device memory. Every allocation stands alone between pages that cannot be touched.
#include "internal.h"
#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace simt {

// An allocation begins at a multiple of this; what is between its end and the guard page must stay as it was.
constexpr size_t GRAIN = 256;
constexpr int UNTOUCHED = 0xff;

static size_t page() {
    static const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    return size;
}

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

Memory &memory() {
    // Never destroyed: a process may end while memory is in use.
    static Memory &all = *new Memory;
    return all;
}

Block *Memory::owner(uintptr_t at) {
    auto next = blocks.upper_bound(at);
    if (next == blocks.begin()) return nullptr;
    Block *block = std::prev(next)->second.get();
    return block->region.holds(at, 1) ? block : nullptr;
}

Block *Memory::neighbour(uintptr_t at) {
    auto next = blocks.upper_bound(at);
    auto holds = [&](Block *b) { return at - (uintptr_t)b->map < b->mapped; };
    if (next != blocks.begin() && holds(std::prev(next)->second.get())) return std::prev(next)->second.get();
    return next != blocks.end() && holds(next->second.get()) ? next->second.get() : nullptr;
}

void *allocate(size_t bytes) {
    size_t body = round_up(std::max<size_t>(bytes, 1), GRAIN), span = round_up(body, page());
    size_t mapped = span + 2 * page();
    void *map = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return nullptr;
    char *first = (char *)map + page(), *at = first + span - body;
    mprotect(map, page(), PROT_NONE);
    mprotect(first + span, page(), PROT_NONE);
    memset(at, UNTOUCHED, body);
    auto block = std::make_unique<Block>();
    block->map = map;
    block->mapped = mapped;
    block->region.low = (uintptr_t)at;
    block->region.high = (uintptr_t)at + bytes;
    block->region.name = text("an allocation of %zu bytes", bytes);
    std::lock_guard<std::mutex> guard(memory().lock);
    memory().blocks[(uintptr_t)at] = std::move(block);
    return at;
}

void release(void *p) {
    std::lock_guard<std::mutex> guard(memory().lock);
    auto found = memory().blocks.find((uintptr_t)p);
    if (found == memory().blocks.end()) throw Failure{text("%p is freed, but is no allocation", p)};
    Block &block = *found->second;
    auto *end = (unsigned char *)block.region.high;
    size_t slack = ((uintptr_t)block.map + block.mapped - page()) - block.region.high;
    bool is_written = std::any_of(end, end + slack, [](unsigned char c) { return c != UNTOUCHED; });
    std::string name = block.region.name;
    munmap(block.map, block.mapped);
    memory().blocks.erase(found);
    if (is_written) throw Failure{"a kernel has written behind " + name};
}

void check_range(const void *p, size_t bytes, bool writes) {
    std::lock_guard<std::mutex> guard(memory().lock);
    Block *block = memory().owner((uintptr_t)p);
    if (!block || !block->region.holds((uintptr_t)p, bytes))
        throw Failure{text("%zu bytes at %p are not within an allocation", bytes, p)};
    if (writes && options().checks_memory_is_set) {
        Region &r = block->region;
        r.is_set.resize(r.high - r.low);
        std::fill_n(r.is_set.begin() + (long)((uintptr_t)p - r.low), bytes, true);
    }
}

Allocation allocation_of(const void *p) {
    std::lock_guard<std::mutex> guard(memory().lock);
    Block *block = memory().owner((uintptr_t)p);
    return block ? Allocation{(void *)block->region.low, block->region.high - block->region.low} : Allocation{nullptr, 0};
}

} // namespace simt

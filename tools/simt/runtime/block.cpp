// Runs blocks: threads begin one after another on one stack; one that must wait keeps its stack, and the next begins on
// another.
#include "fiber.h"
#include "internal.h"
#include <algorithm>
#include <condition_variable>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <set>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

__thread simt_context simt_self;

namespace simt {

thread_local Worker *worker;

// Atomics of one block after which a wait is taken for one without end.
constexpr unsigned MOST_SPINS = 100000000;
// How often an atomic lets other threads go on.
constexpr unsigned SPINS_PER_SWITCH = 256;

std::string name_of(const Worker &, const Thread &t) {
    return text("thread (%u,%u,%u) [wave %u lane %u]", t.index.x, t.index.y, t.index.z, t.wave, t.lane);
}

std::string line_of(const Worker &w, const void *site) {
    return line_of(*w.launch->program, (uint32_t)((uintptr_t)site - w.launch->program->base));
}

static void note_failure(Worker &w, const std::string &report) {
    const uint3 &b = simt_self.block;
    std::lock_guard<std::mutex> guard(w.launch->lock);
    if (!w.launch->has_failed.exchange(true))
        w.launch->failure = text("kernel `%s` block (%u,%u,%u): ", w.launch->kernel->name, b.x, b.y, b.z) + report;
    w.has_failed = true;
}

void give_up(Worker &w, const std::string &report) {
    note_failure(w, report);
    if (w.is_scheduling) longjmp(w.scheduling, 1);
    void *abandoned;
    simt_switch(&abandoned, w.scheduler);
    abort();
}

// ---- who runs next

static void make_ready(Worker &w, Thread *t) {
    t->state = State::Ready;
    w.ready[w.tail++ % w.ready.size()] = t;
}

static void become(Worker &w, Thread *t) {
    w.current = t;
    simt_self.thread = t->index;
    simt_self.lane = t->lane;
}

static char *take_stack(Worker &w) {
    if (w.free_stacks.empty()) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *stack = w.stacks + STACK * w.n_stacks++;
        mprotect(stack + page, STACK - page, PROT_READ | PROT_WRITE);
        w.free_stacks.push_back(stack);
    }
    char *stack = w.free_stacks.back();
    w.free_stacks.pop_back();
    return stack;
}

static void thread_main();

// Leaves the current stack: for a thread that can go on, else for one that has not begun, else for the scheduler.
static void leave(Worker &w, void **save, bool begin_first = false) {
    bool has_more = w.next < w.n;
    if (w.can_run() && !(begin_first && has_more)) {
        Thread *t = w.ready[w.head++ % w.ready.size()];
        become(w, t);
        simt_switch(save, t->stack_pointer);
    } else if (has_more) {
        char *stack = take_stack(w);
        // Equal places of stacks that are 64 KiB apart would share one set of the cache.
        size_t shift = (size_t)(stack - w.stacks) / STACK % 61 * 192;
        simt_switch(save, fresh_stack(stack + STACK - shift - 64, thread_main));
    } else {
        simt_switch(save, w.scheduler);
    }
}

static unsigned draw(Worker &w, unsigned below) {
    w.random = w.random * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((w.random >> 33) % below);
}

// Orders of 0, 1 and more: ascending, descending, shuffled.
static void reorder_ready(Worker &w) {
    unsigned n = w.tail - w.head;
    auto at = [&](unsigned i) -> Thread *& { return w.ready[(w.head + i) % w.ready.size()]; };
    if (options().order == 1)
        for (unsigned i = 0; i < n / 2; i++) std::swap(at(i), at(n - 1 - i));
    if (options().order > 1)
        for (unsigned i = n; i > 1; i--) std::swap(at(i - 1), at(draw(w, i)));
}

// ---- barriers

static void open_barrier(Worker &w, Thread *self) {
    if (w.live != w.n && options().is_strict) {
        auto gone = std::find_if(w.threads.begin(), w.threads.end(), [](const Thread &t) { return t.state == State::Done; });
        give_up(w, "barrier at " + line_of(w, w.barrier_site) + text(" reached by %u of %u threads; the others, ", w.live, w.n) +
                       name_of(w, *gone) + " among them, have returned");
    }
    w.barrier_count = (int)std::count_if(w.at_barrier.begin(), w.at_barrier.end(), [](Thread *t) { return t->predicate != 0; });
    for (Thread *t : w.at_barrier)
        if (t != self) make_ready(w, t);
    w.at_barrier.clear();
    w.arrived = 0;
    w.step++;
    reorder_ready(w);
}

static int barrier(Worker &w, int kind, int predicate, const void *site) {
    Thread *t = w.current;
    t->predicate = predicate;
    t->barrier = site;
    if (!w.arrived) w.barrier_site = site;
    else if (w.barrier_site != site && options().is_strict)
        give_up(w, text("divergent barrier: %u threads wait at ", w.arrived) + line_of(w, w.barrier_site) + ", but " + name_of(w, *t) +
                       " came to the one at " + line_of(w, site));
    w.at_barrier.push_back(t);
    int all = (int)w.live;
    if (++w.arrived == w.live) {
        open_barrier(w, t);
    } else {
        t->state = State::AtBarrier;
        leave(w, &t->stack_pointer);
    }
    switch (kind) {
    case SIMT_COUNT: return w.barrier_count;
    case SIMT_ALL: return w.barrier_count == all;
    default: return w.barrier_count != 0;
    }
}

// ---- operations of a wave

// Completes the operation if all lanes it needs wait in it; `self` is the thread that runs, if it is one of them.
static bool complete(Worker &w, unsigned index, simt_request *r, Thread *self, uint64_t needed) {
    Wave &wave = w.waves[index];
    if ((wave.waiting & needed) != needed) return false;
    simt_request *lanes[64] = {};
    Thread *first = &w.threads[index * w.wave];
    for (uint64_t rest = needed; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctzll(rest);
        simt_request *q = first[lane].request;
        bool both_implicit = q->flags & r->flags & SIMT_IMPLICIT;
        if (q->site != r->site && both_implicit && !options().is_strict) return false;
        if (q->site != r->site || ((q->mask ^ r->mask) & wave.live))
            give_up(w, text("wave %u diverges: %s (mask %#llx) at ", index, r->name, (unsigned long long)r->mask) + line_of(w, r->site) +
                           text(" meets %s (mask %#llx) at ", q->name, (unsigned long long)q->mask) + line_of(w, q->site) + " of " +
                           name_of(w, first[lane]));
        lanes[lane] = q;
    }
    Thread *before = w.current;
    w.current = self ? self : &first[__builtin_ctzll(needed)];
    r->run(lanes, w.wave);
    w.current = before;
    if (r->flags & SIMT_ORDERS && !w.clocks.empty()) join_clocks(w, index, needed);
    wave.waiting &= ~needed;
    for (uint64_t rest = needed; rest; rest &= rest - 1) {
        Thread *t = &first[__builtin_ctzll(rest)];
        t->request = nullptr;
        if (t != self) make_ready(w, t);
    }
    return true;
}

static void together(Worker &w, simt_request *r) {
    Thread *t = w.current;
    Wave &wave = w.waves[t->wave];
    if (w.wave < 64) r->mask &= (1ull << w.wave) - 1;
    t->request = r;
    if (!(r->mask >> t->lane & 1))
        simt_fail("%s: the calling lane %u is not in its own mask %#llx", r->name, t->lane, (unsigned long long)r->mask);
    wave.waiting |= 1ull << t->lane;
    if (complete(w, t->wave, r, t, r->mask & wave.live)) return;
    t->state = State::AtWave;
    leave(w, &t->stack_pointer);
}

// ---- threads

static void begin(Worker &w, char *stack) {
    uint32_t number = w.order.empty() ? w.next : w.order[w.next];
    w.next++;
    Thread *t = &w.threads[number];
    const uint3 &extent = w.launch->geometry.block;
    if (w.order.empty()) {
        // Counting is cheaper than dividing.
        t->index = w.scan;
        if (++w.scan.x == extent.x) {
            w.scan.x = 0;
            if (++w.scan.y == extent.y) {
                w.scan.y = 0;
                w.scan.z++;
            }
        }
    } else {
        t->index = {number % extent.x, number / extent.x % extent.y, number / (extent.x * extent.y)};
    }
    t->number = number;
    t->wave = (uint16_t)(number / w.wave);
    t->lane = (uint16_t)(number % w.wave);
    t->state = State::Ready;
    t->request = nullptr;
    t->stack = stack;
    become(w, t);
}

static void end(Worker &w, Thread *t) {
    t->state = State::Done;
    w.done++;
    w.live--;
    Wave &wave = w.waves[t->wave];
    wave.live &= ~(1ull << t->lane);
    // Its going may complete what others wait for.
    for (uint64_t rest = wave.waiting; rest; rest &= wave.waiting & (rest - 1)) {
        simt_request *r = w.threads[t->wave * w.wave + (unsigned)__builtin_ctzll(rest)].request;
        complete(w, t->wave, r, nullptr, r->mask & wave.live);
    }
    if (w.arrived && w.arrived == w.live) open_barrier(w, nullptr);
}

// Runs threads until one of them has waited and others can go on.
static void thread_main() {
    Worker &w = *worker;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    char *stack = (char *)(here - (here - (uintptr_t)w.stacks) % STACK);
    do {
        begin(w, stack);
        w.launch->kernel->call(w.launch->arguments);
        end(w, w.current);
    } while (!w.can_run() && w.next < w.n);
    w.free_stacks.push_back(stack);
    void *abandoned;
    leave(w, &abandoned);
    abort();
}

// ---- nobody can run, and somebody waits

// Without masks, lock-step hardware runs the lanes at the earliest place together: so do we, unless strict.
static bool run_earliest(Worker &w) {
    for (unsigned i = 0; i < w.waves.size(); i++) {
        Wave &wave = w.waves[i];
        auto request = [&](uint64_t rest) { return w.threads[i * w.wave + (unsigned)__builtin_ctzll(rest)].request; };
        simt_request *earliest = nullptr;
        for (uint64_t rest = wave.waiting; rest; rest &= rest - 1)
            if (request(rest)->flags & SIMT_IMPLICIT && (!earliest || request(rest)->site < earliest->site)) earliest = request(rest);
        uint64_t lanes = 0;
        for (uint64_t rest = wave.waiting; earliest && rest; rest &= rest - 1)
            if (request(rest)->site == earliest->site) lanes |= rest & -rest;
        if (earliest && complete(w, i, earliest, nullptr, lanes)) return true;
    }
    return false;
}

static std::string where_it_waits(const Worker &w, const Thread &t) {
    switch (t.state) {
    case State::AtBarrier: return "wait at the barrier of " + line_of(w, t.barrier);
    case State::AtWave:
        return text("wait in %s (mask %#llx) of ", t.request->name, (unsigned long long)t.request->mask) + line_of(w, t.request->site);
    case State::Done: return "have returned";
    default: return "can run";
    }
}

static void report_standstill(Worker &w) {
    std::map<std::string, std::pair<int, const Thread *>> groups;
    for (unsigned i = 0; i < w.n; i++) {
        auto &group = groups[where_it_waits(w, w.threads[i])];
        if (!group.first++) group.second = &w.threads[i];
    }
    std::string report = "divergent wait, the block cannot go on:";
    for (auto &[where, group] : groups)
        report += text("\n    %4d threads %s, first ", group.first, where.c_str()) + name_of(w, *group.second);
    note_failure(w, report);
}

static bool unstick(Worker &w) {
    // A failure within comes back here: there is no thread to leave.
    w.is_scheduling = true;
    bool goes_on = !setjmp(w.scheduling) && !options().is_strict && run_earliest(w);
    if (!goes_on && !w.has_failed) report_standstill(w);
    w.is_scheduling = false;
    return goes_on;
}

// ---- blocks

static void run_block(Worker &w, uint64_t block) {
    const Geometry &g = w.launch->geometry;
    simt_self.block = {(unsigned)(block % g.grid.x), (unsigned)(block / g.grid.x % g.grid.y), (unsigned)(block / ((uint64_t)g.grid.x * g.grid.y))};
    w.next = w.arrived = w.done = w.head = w.tail = w.spins = 0;
    w.live = w.n;
    w.scan = {0, 0, 0};
    w.at_barrier.clear();
    w.has_failed = false;
    w.first_of_block = ++w.step;
    if (w.launch->program->description->is_checked) w.block_steps.push_back(w.step);
    w.waves.resize((w.n + w.wave - 1) / w.wave);
    for (unsigned i = 0; i < w.waves.size(); i++) {
        unsigned lanes = std::min(w.wave, w.n - i * w.wave);
        w.waves[i] = {lanes == 64 ? ~0ull : (1ull << lanes) - 1, 0};
    }
    for (Clocks &c : w.clocks) {
        memset(&c, 0, sizeof c);
        std::fill(std::begin(c.own), std::end(c.own), 1);
    }
    int order = options().order;
    w.random = (uint64_t)order * 0x9e3779b97f4a7c15ull + block + 1;
    if (order > 1)
        for (unsigned i = w.n; i > 1; i--) std::swap(w.order[i - 1], w.order[draw(w, i)]);
    do leave(w, &w.scheduler);
    while (!w.has_failed && w.done != w.n && unstick(w));
    w.current = nullptr;
    if (w.has_failed) {
        w.free_stacks.clear();
        for (size_t i = 0; i < w.n_stacks; i++) w.free_stacks.push_back(w.stacks + STACK * i);
    }
}

static char *reserve(size_t bytes, int protection) {
    void *p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    return (char *)p;
}

// The last step of the last checked launch.
static uint32_t steps;

static void prepare(Worker &w, Launch &launch) {
    w.launch = &launch;
    w.current = nullptr;
    w.n = launch.threads;
    w.wave = launch.program->description->wave;
    if (!w.stacks) {
        w.threads.resize(MOST_THREADS);
        w.ready.resize(2 * MOST_THREADS);
        w.stacks = reserve(STACK * (MOST_THREADS + 2), PROT_NONE);
        w.dynamic = reserve(MOST_DYNAMIC + 2 * DYNAMIC_GUARD, PROT_READ | PROT_WRITE) + DYNAMIC_GUARD;
    }
    w.clocks.clear();
    if (launch.program->description->is_checked) {
        // Steps go on from launch to launch, whichever threads of the host start them; launches run one at a time.
        w.step = steps;
        w.clocks.resize((w.n + w.wave - 1) / w.wave);
        w.dynamic_region = {(uintptr_t)w.dynamic, (uintptr_t)w.dynamic + launch.geometry.dynamic_shared, "dynamic shared memory", true, 2, {}, {}};
        std::fill(std::begin(w.recent), std::end(w.recent), nullptr);
        w.first_of_launch = w.step + 1;
        w.block_steps.clear();
    }
    w.order.clear();
    for (unsigned i = 0; options().order && i < w.n; i++) w.order.push_back(options().order == 1 ? w.n - 1 - i : i);
}

static void work(Launch &launch) {
    static thread_local Worker own;
    Worker &w = own;
    worker = &w;
    prepare(w, launch);
    bool is_checked = launch.program->description->is_checked;
    Local local = is_checked ? Local{nullptr, 0} : local_of(*launch.program);
    const Geometry &g = launch.geometry;
    uint64_t chunk = is_checked ? 1 : std::max<uint64_t>(1, launch.blocks / 64), first;
    while (!launch.has_failed && (first = launch.next.fetch_add(chunk)) < launch.blocks)
        for (uint64_t b = first; b < std::min(first + chunk, launch.blocks) && !launch.has_failed; b++) {
            // Shared memory begins as NaN, never as zeros.
            if (local.bytes) memset(local.at, 0xff, local.bytes);
            if (g.dynamic_shared) memset(w.dynamic, 0xff, g.dynamic_shared);
            free(simt_self.copies);
            simt_self = {{0, 0, 0}, 0, {0, 0, 0}, g.block, g.grid, w.dynamic, nullptr};
            run_block(w, launch.order.empty() ? b : launch.order[b]);
        }
    if (is_checked) steps = w.step;
    worker = nullptr;
}

// OS threads that wait for launches.
class Pool {
  public:
    explicit Pool(int n) {
        for (int i = 0; i < n; i++) std::thread([this] { serve(); }).detach();
        size = n;
    }
    void run(Launch &launch) {
        {
            std::lock_guard<std::mutex> guard(lock);
            current = &launch;
            serial++;
            busy = size;
        }
        begin.notify_all();
        work(launch);
        std::unique_lock<std::mutex> guard(lock);
        end.wait(guard, [&] { return !busy; });
    }

  private:
    void serve() {
        uint64_t seen = 0;
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            begin.wait(guard, [&] { return serial != seen; });
            seen = serial;
            Launch *launch = current;
            guard.unlock();
            work(*launch);
            guard.lock();
            if (!--busy) end.notify_all();
        }
    }
    std::mutex lock;
    std::condition_variable begin, end;
    Launch *current = nullptr;
    uint64_t serial = 0;
    int busy = 0, size = 0;
};

// ---- launches

static void check_pointer(const Program &program, unsigned index, uintptr_t p) {
    if (!p) return;
    std::lock_guard<std::mutex> guard(memory().lock);
    // One behind the end is the start of an empty view.
    if (memory().owner(p) || memory().owner(p - 1) || memory().blocks.count(p)) return;
    Dl_info info;
    if (dladdr((void *)p, &info) && (uintptr_t)info.dli_fbase == program.base) return;
    throw Failure{text("argument %u, %p, points to no device memory", index, (void *)p)};
}

static void check_launch(const Launch &l, size_t shared_limit) {
    const simt_kernel &k = *l.kernel;
    const Geometry &g = l.geometry;
    uint64_t threads = (uint64_t)g.block.x * g.block.y * g.block.z;
    if (!threads || threads > MOST_THREADS) throw Failure{text("%llu threads in a block", (unsigned long long)threads)};
    if (k.max_threads && threads > k.max_threads)
        throw Failure{text("%llu threads in a block, __launch_bounds__ says %u", (unsigned long long)threads, k.max_threads)};
    if (!l.blocks || g.grid.x > 0x7fffffffu || g.grid.y > 65535 || g.grid.z > 65535)
        throw Failure{text("a grid of %u x %u x %u", g.grid.x, g.grid.y, g.grid.z)};
    if (l.program->description->is_hip && (uint64_t)g.grid.x * g.block.x > 0xffffffffu)
        throw Failure{"HIP wants fewer than 2^32 threads in x"};
    size_t shared = l.program->static_shared;
    if (g.dynamic_shared > MOST_DYNAMIC || shared + g.dynamic_shared > shared_limit)
        throw Failure{text("%zu bytes of static and %zu of dynamic shared memory, the limit is %zu", shared, g.dynamic_shared, shared_limit)};
    for (unsigned i = 0; i < k.n_arguments; i++)
        if (k.arguments[i].is_pointer) check_pointer(*l.program, i, *(uintptr_t *)l.arguments[i]);
}

static std::vector<uint64_t> order_of(uint64_t blocks) {
    std::vector<uint64_t> order;
    int how = options().order;
    for (uint64_t i = 0; how && i < blocks; i++) order.push_back(how == 1 ? blocks - 1 - i : i);
    uint64_t random = (uint64_t)how;
    for (uint64_t i = blocks; how > 1 && i > 1; i--) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(order[i - 1], order[(random >> 33) % i]);
    }
    return order;
}

// SIMT_LOG=FILE gets a line for each kernel that a process launches.
static void log(const char *kernel) {
    static const char *path = getenv("SIMT_LOG");
    static std::set<std::string> &seen = *new std::set<std::string>;
    if (!path || !*path || !seen.insert(kernel).second) return;
    if (FILE *file = fopen(path, "a")) {
        fprintf(file, "%s\n", kernel);
        fclose(file);
    }
}

void launch(Program &program, const simt_kernel *kernel, const Geometry &geometry, size_t shared_limit, void *const *arguments) {
    // One at a time: a checked program has one copy of its shared memory, and the pool one launch.
    static std::mutex one;
    std::lock_guard<std::mutex> guard(one);
    log(kernel->name);
    Launch l;
    l.program = &program;
    l.kernel = kernel;
    l.arguments = arguments;
    l.geometry = geometry;
    l.blocks = (uint64_t)geometry.grid.x * geometry.grid.y * geometry.grid.z;
    l.threads = geometry.block.x * geometry.block.y * geometry.block.z;
    try {
        check_launch(l, shared_limit);
    } catch (const Failure &why) {
        throw Failure{text("launch of `%s` refused: ", kernel->name) + why.text};
    }
    l.order = order_of(l.blocks);
    int workers = program.description->is_checked ? 1 : std::max(1, options().threads);
    // Below, waking other OS threads takes longer.
    constexpr uint64_t ALONE = 4096;
    if (workers > 1 && l.blocks * l.threads > ALONE) {
        static Pool &pool = *new Pool(workers - 1);
        pool.run(l);
    } else {
        work(l);
    }
    if (l.has_failed) throw Failure{l.failure};
}

} // namespace simt

SIMT_EXPORT int simt_barrier(int kind, int predicate, const void *site) {
    return simt::barrier(*simt::worker, kind, predicate, site ? site : __builtin_return_address(0));
}

SIMT_EXPORT void simt_together(simt_request *r) {
    if (!r->site) r->site = __builtin_return_address(0);
    simt::together(*simt::worker, r);
}

SIMT_EXPORT void simt_spin() {
    simt::Worker &w = *simt::worker;
    if (++w.spins % simt::SPINS_PER_SWITCH) return;
    if (w.spins > simt::MOST_SPINS)
        simt::give_up(w, simt::text("%u atomics in one block: a wait without end? ", w.spins) + simt::name_of(w, *w.current));
    if (!w.can_run() && w.next >= w.n) return;
    simt::Thread *t = w.current;
    simt::make_ready(w, t);
    simt::leave(w, &t->stack_pointer, true);
}

SIMT_EXPORT void simt_fail(const char *format, ...) {
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    simt::Worker &w = *simt::worker;
    simt_request *r = w.current->state == simt::State::Done ? nullptr : w.current->request;
    simt::give_up(w, std::string(what) + ", " + simt::name_of(w, *w.current) + (r ? " at " + simt::line_of(w, r->site) : ""));
}

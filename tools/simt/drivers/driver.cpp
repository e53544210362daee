#include "driver.h"
#include "recording.h"
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <thread>

namespace driver {

using simt::Failure;

static thread_local std::string failure;

static Code fail(Code code, const std::string &why) {
    failure = why;
    return code;
}

Code fail_loudly(Code code, const std::string &why) {
    fprintf(stderr, "simt: %s\n", why.c_str());
    return fail(code, "simt: " + why);
}

const char *last_failure() { return failure.c_str(); }

Code planned(const char *call) {
    static const char *set = getenv("SIMT_FAIL");
    size_t length = strlen(call);
    if (!set || strncmp(set, call, length) || set[length] != ':') return Success;
    static std::atomic<long> left = strtol(set + length + 1, nullptr, 10);
    return --left ? Success : fail(LaunchFailed, "SIMT_FAIL asks for it");
}

const char *name_of(Code code) {
    switch (code) {
    case Success: return "SUCCESS";
    case InvalidValue: return "INVALID_VALUE";
    case OutOfMemory: return "OUT_OF_MEMORY";
    case InvalidDevice: return "INVALID_DEVICE";
    case InvalidImage: return "INVALID_IMAGE";
    case InvalidHandle: return "INVALID_HANDLE";
    case IllegalState: return "ILLEGAL_STATE";
    case NotFound: return "NOT_FOUND";
    case NotReady: return "NOT_READY";
    case LaunchFailed: return "LAUNCH_FAILED";
    case NotSupported: return "NOT_SUPPORTED";
    case CaptureUnsupported: return "STREAM_CAPTURE_UNSUPPORTED";
    case CaptureInvalidated: return "STREAM_CAPTURE_INVALIDATED";
    case CaptureImplicit: return "STREAM_CAPTURE_IMPLICIT";
    case CaptureWrongThread: return "STREAM_CAPTURE_WRONG_THREAD";
    }
    return "UNKNOWN";
}

std::string device_name(int wave) {
    return std::string("SIMT emulator, ") + (simt::options().is_checked ? "checked, " : "") + "wave " + std::to_string(wave) + " (" +
           simt::build() + ")";
}

// ---- the state of the device

struct Graph {
    std::vector<Operation> operations;
};

struct Capture {
    Graph graph;
    Mode mode;
    std::thread::id thread;
    bool is_invalid;
};

struct Stream {
    std::deque<Operation> queue;
    bool waits_for_legacy = true;
    std::unique_ptr<Capture> capture;
};

struct Event {
    // Of the last record, and of the last one that a stream has come to; 0 for none.
    unsigned long serial = 0, done = 0;
    Stream *stream = nullptr;
    // It marks a place in a capture and is no real event.
    bool is_captured = false;
    double seconds = 0;
};

struct Pinned {
    size_t bytes;
};

static std::recursive_mutex lock;
static Stream &legacy = *new Stream;
static std::set<Stream *> &streams = *new std::set<Stream *>;
static std::map<const char *, Pinned> &pinned = *new std::map<const char *, Pinned>;
static size_t allocated;
static thread_local Mode mode = Mode::Global;

using Guard = std::lock_guard<std::recursive_mutex>;

static Stream &stream_of(void *handle) {
    // 1 and 2 are names of the legacy and the thread's own stream.
    return (size_t)handle > 2 ? *(Stream *)handle : legacy;
}

static bool is_eager() {
    static const char *how = getenv("SIMT_STREAMS");
    return how && !strcmp(how, "eager");
}

// Runs what waits, to the end or until `is_enough`. The first failure counts.
static Code run_queue(Stream &s, const std::function<bool()> &is_enough = [] { return false; }) {
    Code first = Success;
    while (!s.queue.empty() && !is_enough()) {
        Operation next = std::move(s.queue.front());
        s.queue.pop_front();
        Code code = next();
        if (!first) first = code;
    }
    return first;
}

static Code run_all(bool only_those_that_wait = false) {
    Code first = Success;
    for (Stream *s : streams) {
        if (only_those_that_wait && !s->waits_for_legacy) continue;
        Code code = run_queue(*s);
        if (!first) first = code;
    }
    return first;
}

// What a capture forbids: calls that would wait for it, or that might.
static Code forbidden(const char *call) {
    Code code = Success;
    for (Stream *s : streams) {
        if (!s->capture || s->capture->mode == Mode::Relaxed || mode == Mode::Relaxed) continue;
        bool is_own = s->capture->thread == std::this_thread::get_id();
        if (!is_own && (s->capture->mode == Mode::ThreadLocal || mode == Mode::ThreadLocal)) continue;
        s->capture->is_invalid = true;
        code = fail(CaptureUnsupported, std::string(call) + " while a stream is capturing");
    }
    return code;
}

Code enqueue(void *handle, Operation operation) {
    Guard guard(lock);
    Stream &s = stream_of(handle);
    if (s.capture) {
        s.capture->graph.operations.push_back(std::move(operation));
        return Success;
    }
    if (&s == &legacy) {
        for (Stream *other : streams)
            if (other->capture && other->waits_for_legacy) {
                other->capture->is_invalid = true;
                return fail(CaptureImplicit, "the legacy stream is used while a stream that waits for it is capturing");
            }
        Code before = run_all(true), code = operation();
        return before ? before : code;
    }
    if (is_eager()) return operation();
    s.queue.push_back(std::move(operation));
    return Success;
}

int device_count() {
    static const char *set = getenv("SIMT_DEVICES");
    return set && *set ? atoi(set) : 1;
}

// ---- memory

size_t memory() {
    static const char *set = getenv("SIMT_MEMORY");
    return set && *set ? strtoull(set, nullptr, 10) : (size_t)8 << 30;
}

size_t most_shared() {
    static const char *set = getenv("SIMT_SHARED");
    return set && *set ? strtoull(set, nullptr, 10) : vendor.most_shared;
}

size_t free_memory() { return memory() - allocated; }

Code allocate(void **p, size_t bytes) {
    Guard guard(lock);
    if (Code code = forbidden("an allocation")) return code;
    if (!bytes) return fail(InvalidValue, "an allocation of 0 bytes");
    if (allocated + bytes > memory() || !(*p = simt::allocate(bytes))) return fail(OutOfMemory, "out of memory");
    allocated += bytes;
    return Success;
}

static Code release_now(void *p) {
    size_t bytes = simt::allocation_of(p).bytes;
    try {
        simt::release(p);
        allocated -= bytes;
    } catch (const Failure &why) {
        return fail_loudly(InvalidValue, why.text);
    }
    return Success;
}

Code release(void *p) {
    Guard guard(lock);
    if (Code code = forbidden("giving memory back")) return code;
    if (!p) return Success;
    Code before = run_all(), code = release_now(p);
    return before ? before : code;
}

Code release_in(void *p, void *stream) {
    return enqueue(stream, [p] { return release_now(p); });
}

Code allocate_pinned(void **p, size_t bytes) {
    Guard guard(lock);
    if (Code code = forbidden("an allocation")) return code;
    size_t whole = (bytes + 4095) / 4096 * 4096;
    if (!(*p = aligned_alloc(4096, whole ? whole : 4096))) return fail(OutOfMemory, "out of memory");
    pinned[(char *)*p] = {bytes};
    return Success;
}

Code release_pinned(void *p) {
    Guard guard(lock);
    if (!pinned.count((char *)p)) return fail(InvalidValue, "this is no pinned memory");
    Code code = run_all();
    pinned.erase((char *)p);
    free(p);
    return code;
}

static bool is_pinned(const void *p) {
    auto next = pinned.upper_bound((const char *)p);
    return next != pinned.begin() && (const char *)p < std::prev(next)->first + std::prev(next)->second.bytes;
}

Direction direction_of(const void *to, const void *from) {
    bool to_device = simt::allocation_of(to).at, from_device = simt::allocation_of(from).at;
    return to_device ? from_device ? Direction::Within : Direction::ToDevice : from_device ? Direction::ToHost : Direction::OnHost;
}

static Code copy_now(void *to, const void *from, size_t bytes, Direction direction) {
    try {
        if (direction == Direction::ToDevice || direction == Direction::Within) simt::check_range(to, bytes, true);
        if (direction == Direction::ToHost || direction == Direction::Within) simt::check_range(from, bytes, false);
    } catch (const Failure &why) {
        return fail_loudly(InvalidValue, "copy: " + why.text);
    }
    memmove(to, from, bytes);
    return Success;
}

Code copy(void *to, const void *from, size_t bytes, Direction direction) {
    Guard guard(lock);
    if (Code code = forbidden("a copy that waits")) return code;
    if (!bytes) return Success;
    return enqueue(nullptr, [=] { return copy_now(to, from, bytes, direction); });
}

Code copy_in(void *to, const void *from, size_t bytes, Direction direction, void *stream) {
    Guard guard(lock);
    if (!bytes) return Success;
    Operation later = [=] { return copy_now(to, from, bytes, direction); };
    if (vendor.has_synchronous_pageable_copies && !stream_of(stream).capture) {
        if (direction == Direction::ToDevice && !is_pinned(from)) {
            auto kept = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
            return enqueue(stream, [=] { return copy_now(to, kept->data(), bytes, direction); });
        }
        if (direction == Direction::ToHost && !is_pinned(to)) {
            Code code = enqueue(stream, later), after = run_queue(stream_of(stream));
            return code ? code : after;
        }
    }
    return enqueue(stream, later);
}

Code fill_in(void *to, unsigned value, unsigned width, size_t n, void *stream) {
    if (!n) return Success;
    return enqueue(stream, [=]() -> Code {
        try {
            simt::check_range(to, n * width, true);
        } catch (const Failure &why) {
            return fail_loudly(InvalidValue, "fill: " + why.text);
        }
        for (size_t i = 0; i < n; i++) memcpy((char *)to + i * width, &value, width);
        return Success;
    });
}

// ---- streams

Code create_stream(void **stream, bool waits_for_legacy) {
    Guard guard(lock);
    auto *s = new Stream;
    s->waits_for_legacy = waits_for_legacy;
    streams.insert(s);
    *stream = s;
    return Success;
}

Code destroy_stream(void *stream) {
    Guard guard(lock);
    auto *s = (Stream *)stream;
    if (!streams.count(s)) return fail(InvalidHandle, "this is no stream");
    Code code = run_queue(*s);
    streams.erase(s);
    delete s;
    return code;
}

Code synchronize(void *stream) {
    Guard guard(lock);
    Stream &s = stream_of(stream);
    if (s.capture) {
        s.capture->is_invalid = true;
        return fail(CaptureUnsupported, "waiting for a stream that is capturing");
    }
    return &s == &legacy ? run_all(true) : run_queue(s);
}

Code synchronize_device() {
    Guard guard(lock);
    if (Code code = forbidden("waiting for the device")) return code;
    return run_all();
}

Code query(void *stream) {
    Guard guard(lock);
    return stream_of(stream).queue.empty() ? Success : NotReady;
}

// ---- events

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Code create_event(void **event) {
    *event = new Event;
    return Success;
}

Code record(void *event, void *stream) {
    Guard guard(lock);
    auto *e = (Event *)event;
    e->stream = &stream_of(stream);
    e->is_captured = e->stream->capture != nullptr;
    if (e->is_captured) return Success;
    unsigned long serial = ++e->serial;
    return enqueue(stream, [e, serial] {
        e->done = std::max(e->done, serial);
        e->seconds = now();
        return Success;
    });
}

static bool is_past(const Event &e) { return e.done == e.serial; }

// Runs the event's stream up to a record.
static Code run_to(Event &e, unsigned long serial) {
    return e.done >= serial ? Success : run_queue(*e.stream, [&] { return e.done >= serial; });
}

Code synchronize_event(void *event) {
    Guard guard(lock);
    auto *e = (Event *)event;
    if (e->is_captured) return fail(CaptureUnsupported, "waiting for an event of a capture");
    return run_to(*e, e->serial);
}

Code query_event(void *event) {
    Guard guard(lock);
    return is_past(*(Event *)event) ? Success : NotReady;
}

Code destroy_event(void *event) {
    Guard guard(lock);
    auto *e = (Event *)event;
    // What still waits for it in a stream refers to it, so that its memory stays.
    return run_to(*e, e->serial);
}

Code elapsed(float *milliseconds, void *from, void *to) {
    Guard guard(lock);
    auto *a = (Event *)from, *b = (Event *)to;
    if (!a->serial || !b->serial) return fail(InvalidHandle, "an event was not recorded");
    if (!is_past(*a) || !is_past(*b)) return NotReady;
    *milliseconds = (float)((b->seconds - a->seconds) * 1e3);
    return Success;
}

Code wait_for(void *stream, void *event) {
    Guard guard(lock);
    auto *e = (Event *)event;
    bool is_own = e->stream == &stream_of(stream);
    if (e->is_captured) return is_own ? Success : fail(NotSupported, "captures of several streams are not emulated");
    if (is_past(*e) || is_own) return Success;
    // For the record that there is now: a later one is another event to those that wait.
    return enqueue(stream, [e, serial = e->serial] { return run_to(*e, serial); });
}

// ---- captures and graphs

Code begin_capture(void *stream, Mode how) {
    Guard guard(lock);
    Stream &s = stream_of(stream);
    if (&s == &legacy) return fail(CaptureImplicit, "the legacy stream cannot capture");
    if (s.capture) return fail(IllegalState, "the stream is capturing");
    s.capture.reset(new Capture{{}, how, std::this_thread::get_id(), false});
    return Success;
}

Code end_capture(void *stream, void **graph) {
    Guard guard(lock);
    *graph = nullptr;
    Stream &s = stream_of(stream);
    if (!s.capture) return fail(IllegalState, "the stream is not capturing");
    bool is_own = s.capture->thread == std::this_thread::get_id();
    if (s.capture->mode != Mode::Relaxed && !is_own) return fail(CaptureWrongThread, "another thread began the capture");
    std::unique_ptr<Capture> capture = std::move(s.capture);
    if (capture->is_invalid) return fail(CaptureInvalidated, "a call that a capture forbids has ended it");
    *graph = new Graph(std::move(capture->graph));
    return Success;
}

Code capture_status(void *stream, int *status) {
    Guard guard(lock);
    Stream &s = stream_of(stream);
    *status = !s.capture ? 0 : s.capture->is_invalid ? 2 : 1;
    return Success;
}

Mode exchange_mode(Mode other) { return std::exchange(mode, other); }

Code instantiate(void **executable, void *graph) {
    *executable = new Graph(*(Graph *)graph);
    return Success;
}

Code launch_graph(void *executable, void *stream) {
    auto *graph = (Graph *)executable;
    return enqueue(stream, [graph] {
        for (const Operation &operation : graph->operations)
            if (Code code = operation()) return code;
        return Success;
    });
}

Code destroy_graph(void *graph) {
    delete (Graph *)graph;
    return Success;
}

Code destroy_executable(void *executable) {
    Guard guard(lock);
    // Launches of it may wait in a stream.
    Code code = run_all();
    delete (Graph *)executable;
    return code;
}

// ---- modules

struct Module {
    std::shared_ptr<simt::Program> program;
    std::string digest;
    std::deque<struct Function> functions;
};

struct Function {
    Module *module;
    const simt_kernel *kernel;
    size_t dynamic_shared_limit;
};

// Of an ELF image, which is passed without its size: the section table is its end.
static size_t size_of_image(const unsigned char *image) {
    if (!image || memcmp(image, "\177ELF", 4)) return 0;
    uint64_t table;
    uint16_t entry, n;
    memcpy(&table, image + 40, 8);
    memcpy(&entry, image + 58, 2);
    memcpy(&n, image + 60, 2);
    return (size_t)table + (size_t)entry * n;
}

Code load_module(void **module, const void *image) {
    Guard guard(lock);
    if (Code code = forbidden("loading a module")) return code;
    size_t bytes = size_of_image((const unsigned char *)image);
    if (!bytes) return fail(InvalidImage, "this is no program of the emulator");
    auto made = std::make_unique<Module>();
    std::string code((const char *)image, bytes);
    try {
        made->program = simt::load(code);
    } catch (const Failure &why) {
        return fail(InvalidImage, why.text);
    }
    if (recording::is_on()) made->digest = recording::digest(code);
    *module = made.release();
    return Success;
}

Code unload_module(void *module) {
    Guard guard(lock);
    if (Code code = forbidden("unloading a module")) return code;
    Code code = run_all();
    delete (Module *)module;
    return code;
}

Code find_function(void **function, void *module, const char *name) {
    auto *m = (Module *)module;
    const simt_kernel *kernel = simt::find_kernel(*m->program, name);
    if (!kernel) return fail(NotFound, std::string("there is no kernel ") + name);
    Guard guard(lock);
    m->functions.push_back({m, kernel, vendor.shared});
    *function = &m->functions.back();
    return Success;
}

Code allow_dynamic_shared(void *function, size_t bytes) {
    auto *f = (Function *)function;
    if (bytes + simt::static_shared(*f->module->program) > most_shared()) return fail(InvalidValue, "no block has as much shared memory");
    f->dynamic_shared_limit = std::max(bytes, vendor.shared);
    return Success;
}

size_t static_shared(void *function) { return simt::static_shared(*((Function *)function)->module->program); }

unsigned max_threads(void *function) {
    unsigned bound = ((Function *)function)->kernel->max_threads;
    return bound ? bound : 1024;
}

// A launch with its own copies of the arguments: the caller's may be gone when it runs.
struct Pending {
    Function *function;
    simt::Geometry geometry;
    std::vector<std::vector<char>> values;

    Code run() const {
        const simt_kernel *kernel = function->kernel;
        std::vector<void *> places;
        for (const auto &value : values) places.push_back((void *)value.data());
        recording::Launch record(function->module->digest, kernel, geometry, places);
        size_t limit = std::max(vendor.shared, function->dynamic_shared_limit + simt::static_shared(*function->module->program));
        try {
            simt::launch(*function->module->program, kernel, geometry, limit, places.data());
        } catch (const Failure &why) {
            return fail_loudly(LaunchFailed, why.text);
        }
        record.finish();
        return Success;
    }
};

Code launch(void *function, const simt::Geometry &geometry, void *stream, void **arguments, void **extra) {
    auto *f = (Function *)function;
    if (!f) return fail(InvalidHandle, "there is no function");
    if (extra) return fail(NotSupported, "arguments in one buffer");
    if (f->kernel->n_arguments && !arguments) return fail(InvalidValue, "a launch without arguments");
    auto pending = std::make_shared<Pending>(Pending{f, geometry, {}});
    for (unsigned i = 0; i < f->kernel->n_arguments; i++) {
        if (!arguments[i]) return fail(InvalidValue, "argument " + std::to_string(i) + " is missing");
        auto *value = (const char *)arguments[i];
        pending->values.emplace_back(value, value + f->kernel->arguments[i].size);
    }
    return enqueue(stream, [pending] { return pending->run(); });
}

// ---- programs

Source *create_source(const char *text, const char *name, int headers, const char *const *contents, const char *const *names) {
    auto *source = new Source;
    source->text = text;
    source->name = name && *name ? name : "program";
    source->is_hip = vendor.is_hip;
    for (int i = 0; i < headers; i++) source->headers.push_back({names[i], contents[i]});
    return source;
}

bool compile(Source &source, int wave, int options, const char *const *option) {
    source.wave = wave;
    source.options.assign(option, option + options);
    try {
        source.code = simt::compile(source);
    } catch (const Failure &why) {
        source.log = why.text;
        return false;
    }
    recording::keep(source, source.code);
    return true;
}

} // namespace driver

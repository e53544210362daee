// What the stand-ins for CUDA's and HIP's drivers share: streams, events, graphs, modules, memory and recordings.
//
// Streams are lazy: an operation runs when something waits for it, so that a host program that reads a result, or gives
// memory up, too early is caught. SIMT_STREAMS=eager runs it at once.
//
// Functions return the numbers that both drivers have for a failure, whose text is `last_failure()`.
#pragma once
#include "../runtime/runtime.h"
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>

namespace driver {

enum Code {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidHandle = 400,
    IllegalState = 401,
    NotFound = 500,
    NotReady = 600,
    LaunchFailed = 719,
    NotSupported = 801,
    CaptureUnsupported = 900,
    CaptureInvalidated = 901,
    CaptureImplicit = 906,
    CaptureWrongThread = 908,
};

// Of the calling thread.
const char *last_failure();
const char *name_of(Code code);
// Sets the text. Failures of kernels are shown, too, even if the program that meets them says only the number.
Code fail_loudly(Code code, const std::string &why);

// A failure if SIMT_FAIL asks for it: `NAME:N` makes the N-th call of the function NAME fail.
Code planned(const char *call);

// Where the vendors differ.
struct Vendor {
    bool is_hip;
    // CUDA promises that a copy from or to memory that is not pinned has been done when the call returns, HIP does not.
    bool has_synchronous_pageable_copies;
    // Bytes of shared memory of a block, without and with asking for more.
    size_t shared, most_shared;
};
extern const Vendor vendor;

// The number of devices: SIMT_DEVICES, or 1. They share memory and streams.
int device_count();
// Bytes of the device: those of SIMT_MEMORY, or 8 GiB.
size_t memory();
// Bytes of shared memory of a block that asks for more: those of SIMT_SHARED, or the vendor's.
size_t most_shared();
// `SIMT emulator, checked, wave 32 (1a2b3c4d)`: no cache takes it for hardware, or one build for another.
std::string device_name(int wave);
size_t free_memory();

// ---- memory

Code allocate(void **p, size_t bytes);
Code release(void *p);
Code release_in(void *p, void *stream);
Code allocate_pinned(void **p, size_t bytes);
Code release_pinned(void *p);
enum class Direction { ToDevice, ToHost, Within, OnHost };
// From where the pointers point.
Direction direction_of(const void *to, const void *from);
Code copy(void *to, const void *from, size_t bytes, Direction direction);
Code copy_in(void *to, const void *from, size_t bytes, Direction direction, void *stream);
// Sets `n` elements of `width` bytes.
Code fill_in(void *to, unsigned value, unsigned width, size_t n, void *stream);

// ---- streams, events, graphs

// What the device does when the stream comes to it.
using Operation = std::function<Code()>;
Code enqueue(void *stream, Operation operation);
Code create_stream(void **stream, bool waits_for_legacy);
Code destroy_stream(void *stream);
Code synchronize(void *stream);
Code synchronize_device();
Code query(void *stream);
Code create_event(void **event);
Code destroy_event(void *event);
Code record(void *event, void *stream);
Code synchronize_event(void *event);
Code query_event(void *event);
Code elapsed(float *milliseconds, void *from, void *to);
Code wait_for(void *stream, void *event);

// Which calls of which threads a capture forbids.
enum class Mode { Global, ThreadLocal, Relaxed };
Code begin_capture(void *stream, Mode mode);
Code end_capture(void *stream, void **graph);
// 0: no, 1: yes, 2: it was, until a call made it invalid.
Code capture_status(void *stream, int *status);
Mode exchange_mode(Mode mode);
Code instantiate(void **executable, void *graph);
Code launch_graph(void *executable, void *stream);
Code destroy_graph(void *graph);
Code destroy_executable(void *executable);

// ---- modules and programs

Code load_module(void **module, const void *image);
Code unload_module(void *module);
Code find_function(void **function, void *module, const char *name);
// Lets launches have this much dynamic shared memory.
Code allow_dynamic_shared(void *function, size_t bytes);
size_t static_shared(void *function);
unsigned max_threads(void *function);
Code launch(void *function, const simt::Geometry &geometry, void *stream, void **arguments, void **extra);

// A program of NVRTC or HIPRTC.
struct Source : simt::Source {
    std::string log, code;
};
Source *create_source(const char *text, const char *name, int headers, const char *const *contents, const char *const *names);
// False with a log if it does not compile.
bool compile(Source &source, int wave, int options, const char *const *option);

} // namespace driver

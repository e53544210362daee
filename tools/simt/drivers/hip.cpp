// libamdhip64.so and libhiprtc.so in one: the device of SIMT_ARCH, gfx90a (waves of 64) if that is not set; architectures from
// gfx10 on have waves of 32.
#include "driver.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
using namespace driver;
using Result = int;
using Handle = void *;

const Vendor driver::vendor = {true, false, 64 << 10, 64 << 10};
// ROCm 6.4.
constexpr int VERSION = 60443484;

static const char *architecture() {
    const char *set = getenv("SIMT_ARCH");
    return set && *set ? set : "gfx90a";
}
static int wave_of(const char *name) { return strncmp(name, "gfx9", 4) ? 32 : 64; }
static int wave() { return wave_of(architecture()); }

static thread_local Result last;
static Result note(Result code) { return code ? last = code : code; }

// ---- devices

API Result hipInit(unsigned) { return Success; }
API Result hipGetDeviceCount(int *n) { return *n = device_count(), Success; }
API Result hipSetDevice(int device) { return device < device_count() ? Success : InvalidDevice; }
API Result hipGetDevice(int *device) { return *device = 0, Success; }
API Result hipDeviceGet(int *device, int ordinal) {
    return *device = ordinal, ordinal < device_count() ? Success : InvalidDevice;
}
API Result hipDeviceGetName(char *name, int n, int) { return snprintf(name, (size_t)n, "%s", device_name(wave()).c_str()), Success; }
API Result hipDeviceTotalMem(size_t *bytes, int) { return *bytes = memory(), Success; }
API Result hipDriverGetVersion(int *version) { return *version = VERSION, Success; }
API Result hipRuntimeGetVersion(int *version) { return *version = VERSION, Success; }
API Result hipDeviceSynchronize() { return note(synchronize_device()); }
API Result hipGetLastError() {
    Result code = last;
    return last = Success, code;
}
API Result hipPeekAtLastError() { return last; }
// Numbers of hipDeviceAttribute_t, which are the same from ROCm 5 to 7.
API Result hipDeviceGetAttribute(int *value, int attribute, int device) {
    if (device) return InvalidDevice;
    switch (attribute) {
    case 23: *value = 9; break;                   // ComputeCapabilityMajor
    case 26: *value = 1024; break;                // MaxBlockDimX
    case 56: *value = 1024; break;                // MaxThreadsPerBlock
    case 63: *value = 2; break;                   // MultiprocessorCount
    case 74: *value = (int)vendor.shared; break;  // MaxSharedMemoryPerBlock
    case 87: *value = wave(); break;              // WarpSize
    default: *value = 0;
    }
    return Success;
}

// Where fields of hipDeviceProp_t lie, until ROCm 5 and from ROCm 6 on.
struct Layout {
    size_t size, memory, shared, registers, wave, threads, block, grid, major, units, architecture;
};
constexpr Layout ROCM5 = {792, 256, 264, 272, 276, 280, 284, 296, 328, 336, 396};
constexpr Layout ROCM6 = {1472, 288, 296, 304, 308, 320, 324, 336, 360, 388, 1160};

static Result describe(char *to, const Layout &at) {
    memset(to, 0, at.size);
    auto put = [&](size_t offset, int v) { memcpy(to + offset, &v, sizeof v); };
    snprintf(to, 256, "%s", device_name(wave()).c_str());
    size_t bytes = memory();
    memcpy(to + at.memory, &bytes, sizeof bytes);
    memcpy(to + at.shared, &vendor.shared, sizeof vendor.shared);
    put(at.registers, 65536);
    put(at.wave, wave());
    put(at.threads, 1024);
    for (size_t i = 0; i < 3; i++) {
        put(at.block + 4 * i, 1024);
        put(at.grid + 4 * i, i ? 65535 : 0x7fffffff);
    }
    put(at.major, 9);
    put(at.units, 2);
    snprintf(to + at.architecture, 256, "%s", architecture());
    return Success;
}
API Result hipGetDeviceProperties(void *to, int) { return describe((char *)to, ROCM5); }
API Result hipGetDevicePropertiesR0600(void *to, int) { return describe((char *)to, ROCM6); }
API const char *hipGetErrorName(Result code) {
    static thread_local std::string text;
    return code ? (text = std::string("hipError: ") + name_of((Code)code)).c_str() : "hipSuccess";
}
API const char *hipGetErrorString(Result code) {
    const char *known = last_failure();
    return !code ? "no error" : *known ? known : name_of((Code)code);
}

// ---- memory

API Result hipMemGetInfo(size_t *left, size_t *all) { return *left = free_memory(), *all = memory(), Success; }
API Result hipMalloc(void **p, size_t bytes) { return note(allocate(p, bytes)); }
API Result hipFree(void *p) { return note(release(p)); }
API Result hipMallocAsync(void **p, size_t bytes, Handle) { return note(allocate(p, bytes)); }
API Result hipFreeAsync(void *p, Handle stream) { return note(release_in(p, stream)); }
API Result hipHostMalloc(void **p, size_t bytes, unsigned) { return note(allocate_pinned(p, bytes)); }
API Result hipHostFree(void *p) { return note(release_pinned(p)); }
API Result hipMemcpyHtoD(void *to, const void *from, size_t n) { return note(copy(to, from, n, Direction::ToDevice)); }
API Result hipMemcpyDtoH(void *to, const void *from, size_t n) { return note(copy(to, from, n, Direction::ToHost)); }
API Result hipMemcpyDtoD(void *to, const void *from, size_t n) { return note(copy(to, from, n, Direction::Within)); }
API Result hipMemcpyHtoDAsync(void *to, const void *from, size_t n, Handle stream) {
    return note(copy_in(to, from, n, Direction::ToDevice, stream));
}
API Result hipMemcpyDtoHAsync(void *to, const void *from, size_t n, Handle stream) {
    return note(copy_in(to, from, n, Direction::ToHost, stream));
}
API Result hipMemcpyDtoDAsync(void *to, const void *from, size_t n, Handle stream) {
    return note(copy_in(to, from, n, Direction::Within, stream));
}
static Direction direction(void *to, const void *from, int kind) {
    switch (kind) {
    case 0: return Direction::OnHost;
    case 1: return Direction::ToDevice;
    case 2: return Direction::ToHost;
    case 3: return Direction::Within;
    default: return direction_of(to, from);
    }
}
API Result hipMemcpy(void *to, const void *from, size_t n, int kind) { return note(copy(to, from, n, direction(to, from, kind))); }
API Result hipMemcpyAsync(void *to, const void *from, size_t n, int kind, Handle stream) {
    return note(copy_in(to, from, n, direction(to, from, kind), stream));
}
API Result hipMemset(void *to, int v, size_t n) { return note(fill_in(to, (unsigned)v & 255, 1, n, nullptr)); }
API Result hipMemsetAsync(void *to, int v, size_t n, Handle stream) { return note(fill_in(to, (unsigned)v & 255, 1, n, stream)); }
API Result hipMemsetD8Async(void *to, unsigned char v, size_t n, Handle stream) { return note(fill_in(to, v, 1, n, stream)); }
API Result hipMemsetD32Async(void *to, int v, size_t n, Handle stream) { return note(fill_in(to, (unsigned)v, 4, n, stream)); }

// ---- streams, events, graphs

API Result hipStreamCreate(Handle *stream) { return note(create_stream(stream, true)); }
API Result hipStreamCreateWithFlags(Handle *stream, unsigned flags) { return note(create_stream(stream, !(flags & 1))); }
API Result hipStreamDestroy(Handle stream) { return note(destroy_stream(stream)); }
API Result hipStreamSynchronize(Handle stream) { return note(synchronize(stream)); }
API Result hipStreamQuery(Handle stream) { return query(stream); }
API Result hipStreamWaitEvent(Handle stream, Handle event, unsigned) { return note(wait_for(stream, event)); }
API Result hipEventCreate(Handle *event) { return note(create_event(event)); }
API Result hipEventCreateWithFlags(Handle *event, unsigned) { return note(create_event(event)); }
API Result hipEventDestroy(Handle event) { return note(destroy_event(event)); }
API Result hipEventRecord(Handle event, Handle stream) { return note(record(event, stream)); }
API Result hipEventSynchronize(Handle event) { return note(synchronize_event(event)); }
API Result hipEventQuery(Handle event) { return query_event(event); }
API Result hipEventElapsedTime(float *ms, Handle from, Handle to) { return note(elapsed(ms, from, to)); }

API Result hipStreamBeginCapture(Handle stream, int mode) { return note(begin_capture(stream, (Mode)mode)); }
API Result hipStreamEndCapture(Handle stream, Handle *graph) { return note(end_capture(stream, graph)); }
API Result hipStreamIsCapturing(Handle stream, int *status) { return note(capture_status(stream, status)); }
API Result hipThreadExchangeStreamCaptureMode(int *mode) { return *mode = (int)exchange_mode((Mode)*mode), Success; }
API Result hipGraphInstantiate(Handle *made, Handle graph, Handle *, char *, size_t) { return note(instantiate(made, graph)); }
API Result hipGraphInstantiateWithFlags(Handle *made, Handle graph, unsigned long long) { return note(instantiate(made, graph)); }
API Result hipGraphLaunch(Handle executable, Handle stream) { return note(launch_graph(executable, stream)); }
API Result hipGraphDestroy(Handle graph) { return note(destroy_graph(graph)); }
API Result hipGraphExecDestroy(Handle executable) { return note(destroy_executable(executable)); }

// ---- modules

API Result hipModuleLoadData(Handle *module, const void *image) { return note(load_module(module, image)); }
API Result hipModuleUnload(Handle module) { return note(unload_module(module)); }
API Result hipModuleGetFunction(Handle *function, Handle module, const char *name) { return note(find_function(function, module, name)); }
API Result hipFuncSetAttribute(Handle, int, int) { return Success; }
API Result hipModuleLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, Handle stream, void **arguments, void **extra) {
    return note(launch(function, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, arguments, extra));
}

// ---- HIPRTC

constexpr int COMPILATION = 6;

API Result hiprtcVersion(int *major, int *minor) { return *major = 9, *minor = 0, Success; }
API const char *hiprtcGetErrorString(Result code) {
    return !code ? "HIPRTC_SUCCESS" : code == COMPILATION ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR";
}
API Result hiprtcCreateProgram(Source **made, const char *text, const char *name, int headers, const char *const *contents,
                               const char *const *names) {
    return *made = create_source(text, name, headers, contents, names), Success;
}
API Result hiprtcDestroyProgram(Source **source) { return delete *source, *source = nullptr, Success; }
API Result hiprtcCompileProgram(Source *source, int n, const char *const *options) {
    const char *name = architecture();
    for (int i = 0; i < n; i++)
        if (const char *given = strstr(options[i], "-arch=")) name = given + strlen("-arch=");
    return compile(*source, wave_of(name), n, options) ? Success : COMPILATION;
}
API Result hiprtcGetProgramLogSize(Source *source, size_t *n) { return *n = source->log.size() + 1, Success; }
API Result hiprtcGetProgramLog(Source *source, char *to) { return memcpy(to, source->log.c_str(), source->log.size() + 1), Success; }
API Result hiprtcGetCodeSize(Source *source, size_t *n) { return *n = source->code.size(), Success; }
API Result hiprtcGetCode(Source *source, char *to) { return memcpy(to, source->code.data(), source->code.size()), Success; }

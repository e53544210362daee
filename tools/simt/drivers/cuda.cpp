// libcuda.so.1 and libnvrtc.so in one: a device whose waves have 32 lanes.
#include "driver.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
using namespace driver;
using Result = int;
using DevicePtr = unsigned long long;
using Handle = void *;

// Of compute capability 9.0: 48 KiB, and 227 KiB for who asks.
const Vendor driver::vendor = {false, true, 48 << 10, 227 << 10};
constexpr int WAVE = 32;

// Ten times the compute capability: that of SIMT_ARCH, or 90.
static int compute() {
    const char *set = getenv("SIMT_ARCH");
    return set && !strncmp(set, "sm_", 3) ? atoi(set + 3) : 90;
}

static void *at(DevicePtr p) { return (void *)p; }
static char context;
static thread_local Handle current;

// ---- devices and contexts

API Result cuInit(unsigned) { return Success; }
API Result cuDriverGetVersion(int *version) { return *version = 12090, Success; }
API Result cuDeviceGetCount(int *n) { return *n = device_count(), Success; }
API Result cuDeviceGet(int *device, int ordinal) {
    return *device = ordinal, ordinal < device_count() ? Success : InvalidDevice;
}
API Result cuDeviceGetName(char *name, int n, int) { return snprintf(name, (size_t)n, "%s", device_name(WAVE).c_str()), Success; }
API Result cuDeviceGetUuid(char *uuid, int) { return memset(uuid, 1, 16), Success; }
API Result cuDeviceGetUuid_v2(char *uuid, int) { return memset(uuid, 1, 16), Success; }
API Result cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = memory(), Success; }
API Result cuDeviceGetAttribute(int *value, int attribute, int) {
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;       // MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X, _Y
    case 4: *value = 64; break;                         // MAX_BLOCK_DIM_Z
    case 5: *value = 0x7fffffff; break;                 // MAX_GRID_DIM_X
    case 6: case 7: *value = 65535; break;              // MAX_GRID_DIM_Y, _Z
    case 8: *value = (int)vendor.shared; break;         // MAX_SHARED_MEMORY_PER_BLOCK
    case 10: *value = WAVE; break;                      // WARP_SIZE
    case 16: *value = 2; break;                         // MULTIPROCESSOR_COUNT
    case 38: *value = 1 << 20; break;                   // L2_CACHE_SIZE
    case 39: *value = 2048; break;                      // MAX_THREADS_PER_MULTIPROCESSOR
    case 75: *value = compute() / 10; break;            // COMPUTE_CAPABILITY_MAJOR
    case 76: *value = compute() % 10; break;            // COMPUTE_CAPABILITY_MINOR
    case 81: case 97: *value = (int)most_shared(); break; // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, _PER_BLOCK_OPTIN
    case 115: *value = 1; break;                        // MEMORY_POOLS_SUPPORTED
    default: *value = 0;
    }
    return Success;
}
API Result cuDevicePrimaryCtxRetain(Handle *made, int) { return *made = &context, Success; }
API Result cuDevicePrimaryCtxRelease_v2(int) { return Success; }
API Result cuCtxSetCurrent(Handle c) { return current = c, Success; }
API Result cuCtxGetCurrent(Handle *c) { return *c = current, Success; }
API Result cuCtxSynchronize() { return synchronize_device(); }
API Result cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0, Success; }
API Result cuGetErrorName(Result code, const char **name) {
    static thread_local std::string text;
    text = "CUDA_ERROR_";
    return *name = code ? (text += name_of((Code)code)).c_str() : "CUDA_SUCCESS", Success;
}
API Result cuGetErrorString(Result code, const char **text) {
    const char *known = last_failure();
    return *text = !code ? "no error" : *known ? known : name_of((Code)code), Success;
}

// ---- memory

API Result cuMemGetInfo_v2(size_t *left, size_t *all) { return *left = free_memory(), *all = memory(), Success; }
API Result cuMemAlloc_v2(DevicePtr *p, size_t bytes) { return allocate((void **)p, bytes); }
API Result cuMemFree_v2(DevicePtr p) { return release(at(p)); }
API Result cuMemAllocAsync(DevicePtr *p, size_t bytes, Handle) { return allocate((void **)p, bytes); }
API Result cuMemFreeAsync(DevicePtr p, Handle stream) { return release_in(at(p), stream); }
API Result cuMemHostAlloc(void **p, size_t bytes, unsigned) { return allocate_pinned(p, bytes); }
API Result cuMemFreeHost(void *p) { return release_pinned(p); }
API Result cuMemcpyHtoD_v2(DevicePtr to, const void *from, size_t n) { return copy(at(to), from, n, Direction::ToDevice); }
API Result cuMemcpyDtoH_v2(void *to, DevicePtr from, size_t n) { return copy(to, at(from), n, Direction::ToHost); }
API Result cuMemcpyDtoD_v2(DevicePtr to, DevicePtr from, size_t n) { return copy(at(to), at(from), n, Direction::Within); }
API Result cuMemcpyHtoDAsync_v2(DevicePtr to, const void *from, size_t n, Handle stream) {
    if (Code code = planned("cuMemcpyHtoDAsync")) return code;
    return copy_in(at(to), from, n, Direction::ToDevice, stream);
}
API Result cuMemcpyDtoHAsync_v2(void *to, DevicePtr from, size_t n, Handle stream) {
    return copy_in(to, at(from), n, Direction::ToHost, stream);
}
API Result cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, size_t n, Handle stream) {
    if (Code code = planned("cuMemcpyDtoDAsync")) return code;
    return copy_in(at(to), at(from), n, Direction::Within, stream);
}
API Result cuMemsetD8_v2(DevicePtr to, unsigned char v, size_t n) { return fill_in(at(to), v, 1, n, nullptr); }
API Result cuMemsetD8Async(DevicePtr to, unsigned char v, size_t n, Handle stream) { return fill_in(at(to), v, 1, n, stream); }
API Result cuMemsetD32Async(DevicePtr to, unsigned v, size_t n, Handle stream) { return fill_in(at(to), v, 4, n, stream); }

// ---- streams, events, graphs

API Result cuStreamCreate(Handle *stream, unsigned flags) { return create_stream(stream, !(flags & 1)); }
API Result cuStreamCreateWithPriority(Handle *stream, unsigned flags, int) { return create_stream(stream, !(flags & 1)); }
API Result cuStreamDestroy_v2(Handle stream) { return destroy_stream(stream); }
API Result cuStreamSynchronize(Handle stream) { return synchronize(stream); }
API Result cuStreamQuery(Handle stream) { return query(stream); }
API Result cuStreamWaitEvent(Handle stream, Handle event, unsigned) { return wait_for(stream, event); }
API Result cuEventCreate(Handle *event, unsigned) { return create_event(event); }
API Result cuEventDestroy_v2(Handle event) { return destroy_event(event); }
API Result cuEventRecord(Handle event, Handle stream) {
    if (Code code = planned("cuEventRecord")) return code;
    return record(event, stream);
}
API Result cuEventSynchronize(Handle event) { return synchronize_event(event); }
API Result cuEventQuery(Handle event) { return query_event(event); }
API Result cuEventElapsedTime(float *ms, Handle from, Handle to) { return elapsed(ms, from, to); }
API Result cuEventElapsedTime_v2(float *ms, Handle from, Handle to) { return elapsed(ms, from, to); }

API Result cuStreamBeginCapture_v2(Handle stream, int mode) { return begin_capture(stream, (Mode)mode); }
API Result cuStreamEndCapture(Handle stream, Handle *graph) { return end_capture(stream, graph); }
API Result cuStreamIsCapturing(Handle stream, int *status) { return capture_status(stream, status); }
API Result cuThreadExchangeStreamCaptureMode(int *mode) { return *mode = (int)exchange_mode((Mode)*mode), Success; }
API Result cuGraphInstantiateWithFlags(Handle *made, Handle graph, unsigned long long) { return instantiate(made, graph); }
API Result cuGraphLaunch(Handle executable, Handle stream) { return launch_graph(executable, stream); }
API Result cuGraphUpload(Handle, Handle) { return Success; }
API Result cuGraphDestroy(Handle graph) { return destroy_graph(graph); }
API Result cuGraphExecDestroy(Handle executable) { return destroy_executable(executable); }

// ---- modules

API Result cuModuleLoadData(Handle *module, const void *image) { return load_module(module, image); }
API Result cuModuleUnload(Handle module) { return unload_module(module); }
API Result cuModuleGetFunction(Handle *function, Handle module, const char *name) { return find_function(function, module, name); }
API Result cuFuncSetAttribute(Handle function, int attribute, int value) {
    // MAX_DYNAMIC_SHARED_SIZE_BYTES
    return attribute == 8 ? allow_dynamic_shared(function, (size_t)value) : Success;
}
API Result cuFuncGetAttribute(int *value, int attribute, Handle function) {
    // MAX_THREADS_PER_BLOCK, SHARED_SIZE_BYTES
    *value = attribute == 0 ? (int)max_threads(function) : attribute == 1 ? (int)static_shared(function) : 0;
    return Success;
}
API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, Handle, int, size_t) { return *n = 1, Success; }
API Result cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          Handle stream, void **arguments, void **extra) {
    return launch(function, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, arguments, extra);
}

// CUlaunchConfig. Its attributes are permissions, of which no use is made.
struct LaunchConfig {
    unsigned gx, gy, gz, bx, by, bz, shared;
    Handle stream;
    void *attributes;
    unsigned n_attributes;
};
API Result cuLaunchKernelEx(const LaunchConfig *config, Handle function, void **arguments, void **extra) {
    const LaunchConfig &c = *config;
    return launch(function, {{c.gx, c.gy, c.gz}, {c.bx, c.by, c.bz}, c.shared}, c.stream, arguments, extra);
}

// ---- NVRTC

constexpr int COMPILATION = 6;

API Result nvrtcVersion(int *major, int *minor) { return *major = 12, *minor = 9, Success; }
API const char *nvrtcGetErrorString(Result code) { return !code ? "NVRTC_SUCCESS" : code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
API Result nvrtcCreateProgram(Source **made, const char *text, const char *name, int headers, const char *const *contents,
                              const char *const *names) {
    return *made = create_source(text, name, headers, contents, names), Success;
}
API Result nvrtcDestroyProgram(Source **source) { return delete *source, *source = nullptr, Success; }
API Result nvrtcCompileProgram(Source *source, int n, const char *const *options) { return compile(*source, WAVE, n, options) ? Success : COMPILATION; }
API Result nvrtcGetProgramLogSize(Source *source, size_t *n) { return *n = source->log.size() + 1, Success; }
API Result nvrtcGetProgramLog(Source *source, char *to) { return memcpy(to, source->log.c_str(), source->log.size() + 1), Success; }
API Result nvrtcGetCUBINSize(Source *source, size_t *n) { return *n = source->code.size(), Success; }
API Result nvrtcGetCUBIN(Source *source, char *to) { return memcpy(to, source->code.data(), source->code.size()), Success; }
// cudarc asks for PTX, which a module takes as well.
API Result nvrtcGetPTXSize(Source *source, size_t *n) { return nvrtcGetCUBINSize(source, n); }
API Result nvrtcGetPTX(Source *source, char *to) { return nvrtcGetCUBIN(source, to); }

// libamdhip64.so and libhiprtc.so in one, over NVIDIA's libcuda and libnvrtc: HIP host code and HIP kernels on an NVIDIA GPU,
// with waves of 32. What isograd's HIP backend calls is here, and no more.
//
// HIP has CUDA's numbers for errors and for most flags: these pass unchanged.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
using Result = int;
using Handle = void *;
using Address = unsigned long long;

constexpr Result Success = 0, InvalidValue = 1, InvalidDevice = 101, NotSupported = 801;
// ROCm 6.4.
constexpr int VERSION = 60443484;

// ---- NVIDIA's libraries

static void *open_first(const char *chosen, std::initializer_list<const char *> names) {
    if (chosen && *chosen) return dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    for (const char *name : names)
        if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    return nullptr;
}

static void *cuda() {
    static void *library = open_first(getenv("HIP_ON_CUDA_DRIVER"), {"libcuda.so.1"});
    return library;
}

static void *nvrtc() {
    static void *library =
        open_first(getenv("HIP_ON_CUDA_NVRTC"), {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"});
    return library;
}

static void *find(void *library, const char *name) {
    void *found = library ? dlsym(library, name) : nullptr;
    if (!found) fprintf(stderr, "hip-on-cuda: %s is missing\n", name);
    return found;
}

// Calls a function of one of the libraries by its name, which is looked up once.
#define CALL(library, otherwise, name, ...) \
    ([&]() -> int { \
        static void *found = find(library, #name); \
        return found ? forward(found, ##__VA_ARGS__) : otherwise; \
    }())
#define CUDA(name, ...) CALL(cuda(), NotSupported, name, ##__VA_ARGS__)
#define NVRTC(name, ...) CALL(nvrtc(), 11, name, ##__VA_ARGS__)

template <class... A> static int forward(void *function, A... arguments) { return ((int (*)(A...))function)(arguments...); }

// ---- devices

// The architecture that devices claim to be, one with waves of 32.
static const char *architecture() {
    const char *set = getenv("HIP_ON_CUDA_ARCH");
    return set && *set ? set : "gfx1030";
}

static int attribute(int which, int device) {
    int value = 0;
    CUDA(cuDeviceGetAttribute, &value, which, device);
    return value;
}

static thread_local int current = 0;

// Makes a device's primary context that of the thread. It is kept until the process ends.
static Result enter(int device) {
    static std::mutex lock;
    static std::vector<Handle> contexts;
    Handle context = nullptr;
    {
        std::lock_guard<std::mutex> held(lock);
        static Result ready = CUDA(cuInit, 0u);
        if (ready) return ready;
        if (device < 0 || device >= 64) return InvalidDevice;
        contexts.resize(64);
        if (!contexts[device])
            if (Result code = CUDA(cuDevicePrimaryCtxRetain, &contexts[device], device)) return code;
        context = contexts[device];
    }
    static thread_local Handle entered = nullptr;
    if (context == entered) return Success;
    Result code = CUDA(cuCtxSetCurrent, context);
    if (!code) entered = context, current = device;
    return code;
}

API Result hipGetDeviceCount(int *n) {
    Result code = CUDA(cuInit, 0u);
    return code ? code : CUDA(cuDeviceGetCount, n);
}
API Result hipSetDevice(int device) { return enter(device); }
API Result hipRuntimeGetVersion(int *version) { return *version = VERSION, Success; }

// Where fields of hipDeviceProp_t lie, until ROCm 5 and from ROCm 6 on; ROCm 5 has no `optin`.
struct Layout {
    size_t size, memory, shared, wave, threads, units, architecture, optin;
};
constexpr Layout ROCM5 = {792, 256, 264, 276, 280, 336, 396, 0};
constexpr Layout ROCM6 = {1472, 288, 296, 308, 320, 388, 1160, 696};

static Result describe(char *to, const Layout &at, int device) {
    memset(to, 0, at.size);
    size_t memory = 0, shared = (size_t)attribute(8, device), optin = (size_t)attribute(97, device);
    int wave = attribute(10, device), threads = attribute(1, device), units = attribute(16, device);
    Result code = CUDA(cuDeviceGetName, to, 256, device);
    if (!code) code = CUDA(cuDeviceTotalMem_v2, &memory, device);
    memcpy(to + at.memory, &memory, sizeof memory);
    memcpy(to + at.shared, &shared, sizeof shared);
    memcpy(to + at.wave, &wave, sizeof wave);
    memcpy(to + at.threads, &threads, sizeof threads);
    memcpy(to + at.units, &units, sizeof units);
    if (at.optin) memcpy(to + at.optin, &optin, sizeof optin);
    snprintf(to + at.architecture, 256, "%s", architecture());
    return code;
}
API Result hipGetDeviceProperties(void *to, int device) { return describe((char *)to, ROCM5, device); }
API Result hipGetDevicePropertiesR0600(void *to, int device) { return describe((char *)to, ROCM6, device); }

API const char *hipGetErrorName(Result code) {
    const char *text = nullptr;
    CUDA(cuGetErrorName, code, &text);
    return text ? text : "an unknown error";
}
API const char *hipGetErrorString(Result code) {
    const char *text = nullptr;
    CUDA(cuGetErrorString, code, &text);
    return text ? text : "an unknown error";
}

// ---- memory

static Address address(const void *p) { return (Address)(size_t)p; }

API Result hipMalloc(void **p, size_t bytes) {
    *p = nullptr;
    return bytes ? CUDA(cuMemAlloc_v2, (Address *)p, bytes) : Success;
}
API Result hipFree(void *p) { return p ? CUDA(cuMemFree_v2, address(p)) : Success; }
API Result hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, Handle stream) {
    return CUDA(cuMemcpyHtoDAsync_v2, address(to), from, bytes, stream);
}
API Result hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, Handle stream) {
    return CUDA(cuMemcpyDtoHAsync_v2, to, address(from), bytes, stream);
}
API Result hipMemcpyDtoDAsync(void *to, const void *from, size_t bytes, Handle stream) {
    return CUDA(cuMemcpyDtoDAsync_v2, address(to), address(from), bytes, stream);
}
API Result hipMemsetD8Async(void *to, unsigned char value, size_t bytes, Handle stream) {
    return CUDA(cuMemsetD8Async, address(to), value, bytes, stream);
}

// ---- streams, events, graphs

API Result hipStreamCreateWithFlags(Handle *stream, unsigned flags) { return CUDA(cuStreamCreate, stream, flags); }
API Result hipStreamDestroy(Handle stream) { return CUDA(cuStreamDestroy_v2, stream); }
API Result hipStreamSynchronize(Handle stream) { return CUDA(cuStreamSynchronize, stream); }
API Result hipEventCreateWithFlags(Handle *event, unsigned flags) { return CUDA(cuEventCreate, event, flags); }
API Result hipEventDestroy(Handle event) { return CUDA(cuEventDestroy_v2, event); }
API Result hipEventRecord(Handle event, Handle stream) { return CUDA(cuEventRecord, event, stream); }
API Result hipEventSynchronize(Handle event) { return CUDA(cuEventSynchronize, event); }
API Result hipEventElapsedTime(float *milliseconds, Handle from, Handle to) {
    return CUDA(cuEventElapsedTime, milliseconds, from, to);
}
API Result hipStreamBeginCapture(Handle stream, int mode) { return CUDA(cuStreamBeginCapture_v2, stream, mode); }
API Result hipStreamEndCapture(Handle stream, Handle *graph) { return CUDA(cuStreamEndCapture, stream, graph); }
API Result hipGraphInstantiate(Handle *executable, Handle graph, Handle *, char *, size_t) {
    return CUDA(cuGraphInstantiateWithFlags, executable, graph, 0ull);
}
API Result hipGraphLaunch(Handle executable, Handle stream) { return CUDA(cuGraphLaunch, executable, stream); }
API Result hipGraphDestroy(Handle graph) { return CUDA(cuGraphDestroy, graph); }
API Result hipGraphExecDestroy(Handle executable) { return CUDA(cuGraphExecDestroy, executable); }

// ---- modules

API Result hipModuleLoadData(Handle *module, const void *image) { return CUDA(cuModuleLoadData, module, image); }
API Result hipModuleUnload(Handle module) { return CUDA(cuModuleUnload, module); }
API Result hipModuleGetFunction(Handle *function, Handle module, const char *name) {
    return CUDA(cuModuleGetFunction, function, module, name);
}
API Result hipModuleLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                 unsigned shared, Handle stream, void **arguments, void **extra) {
    // CUDA gives as much only if it is asked for.
    if (shared)
        if (Result code = CUDA(cuFuncSetAttribute, function, 8, (int)shared)) return code;
    return CUDA(cuLaunchKernel, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
}

// ---- HIPRTC

API Result hiprtcVersion(int *major, int *minor) { return NVRTC(nvrtcVersion, major, minor); }
API const char *hiprtcGetErrorString(Result code) {
    static void *found = find(nvrtc(), "nvrtcGetErrorString");
    return found ? ((const char *(*)(int))found)(code) : "there is no NVRTC";
}
API Result hiprtcCreateProgram(Handle *program, const char *source, const char *name, int headers, const char *const *texts,
                               const char *const *names) {
    return NVRTC(nvrtcCreateProgram, program, source, name, headers, texts, names);
}
API Result hiprtcDestroyProgram(Handle *program) { return NVRTC(nvrtcDestroyProgram, program); }
// Of the options only the language and the contraction mean something here.
API Result hiprtcCompileProgram(Handle program, int n, const char *const *given) {
    std::string target = "--gpu-architecture=sm_" + std::to_string(attribute(75, current)) + std::to_string(attribute(76, current));
    std::vector<std::string> options = {target};
    for (int i = 0; i < n; i++) {
        std::string option = given[i];
        if (!option.compare(0, 5, "-std=")) options.push_back("-" + option);
        else if (option == "-ffp-contract=off") options.push_back("--fmad=false");
    }
    std::vector<const char *> all;
    for (const std::string &option : options) all.push_back(option.c_str());
    return NVRTC(nvrtcCompileProgram, program, (int)all.size(), all.data());
}
API Result hiprtcGetCodeSize(Handle program, size_t *bytes) { return NVRTC(nvrtcGetCUBINSize, program, bytes); }
API Result hiprtcGetCode(Handle program, char *to) { return NVRTC(nvrtcGetCUBIN, program, to); }
API Result hiprtcGetProgramLogSize(Handle program, size_t *bytes) { return NVRTC(nvrtcGetProgramLogSize, program, bytes); }
API Result hiprtcGetProgramLog(Handle program, char *to) { return NVRTC(nvrtcGetProgramLog, program, to); }

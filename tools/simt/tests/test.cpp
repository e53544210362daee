// The emulator's own tests: right kernels are right and not reported, each planted mistake is reported, and the stand-ins
// for the drivers catch mistakes of the host. Started by `cargo xtask simt`, or in the folder of build.sh: ./test
#include "../runtime/runtime.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <dirent.h>
#include <functional>
#include <thread>

using std::string;
using std::vector;

static int passed, failed;

static void expect(const string &name, bool holds, const string &why = "") {
    (holds ? passed : failed)++;
    if (!holds) printf("FAILED %s: %s\n", name.c_str(), why.c_str());
}

static string read(const string &name) {
    string path = string(SIMT_TESTS) + "/kernels/" + name, all;
    char buffer[4096];
    FILE *file = fopen(path.c_str(), "rb");
    if (!file) {
        perror(path.c_str());
        exit(1);
    }
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, file));) all.append(buffer, n);
    fclose(file);
    return all;
}

// ---- kernels

struct Target {
    bool is_hip, is_checked;
    int wave;
    string name() const {
        return string(is_hip ? "hip" : "cuda") + "::wave_" + std::to_string(wave) + (is_checked ? "::checked::" : "::fast::");
    }
};

static std::shared_ptr<simt::Program> build(const string &file, const Target &target, vector<string> options = {}) {
    simt::options().is_checked = target.is_checked;
    try {
        return simt::load(simt::compile({read(file), file, target.is_hip, target.wave, options, {{"prelude.h", read("prelude.h")}}}));
    } catch (const simt::Failure &why) {
        printf("%s%s does not compile:\n%s\n", target.name().c_str(), file.c_str(), why.text.c_str());
        exit(1);
    }
}

template <class T> struct Buffer {
    T *p;
    size_t n;
    explicit Buffer(const vector<T> &v) : p((T *)simt::allocate(v.size() * sizeof(T))), n(v.size()) {
        memcpy(p, v.data(), n * sizeof(T));
        simt::check_range(p, n * sizeof(T), true);
    }
    ~Buffer() {
        // What is wrong with the memory is another test's.
        try {
            simt::release(p);
        } catch (const simt::Failure &) {
        }
    }
    T &operator[](size_t i) { return p[i]; }
};
using Floats = Buffer<float>;

// The report; empty if the kernel ran.
template <class... A>
static string launch(simt::Program &program, const char *name, uint3 grid, uint3 block, size_t shared, A... arguments) {
    const simt_kernel *kernel = simt::find_kernel(program, name);
    if (!kernel) return "there is no such kernel";
    void *places[] = {(void *)&arguments..., nullptr};
    try {
        simt::launch(program, kernel, {grid, block, shared}, 64 << 10, places);
    } catch (const simt::Failure &why) {
        return why.text;
    }
    return "";
}

static vector<float> random(size_t n, unsigned seed = 1) {
    vector<float> v(n);
    for (float &x : v) x = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1;
    return v;
}

// The largest error; NaN counts.
static double worst(size_t n, const std::function<double(size_t)> &got, const std::function<double(size_t)> &wanted) {
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double error = std::fabs(got(i) - wanted(i)) / (1 + std::fabs(wanted(i)));
        if (!(error <= most)) most = error;
    }
    return most;
}

static void right(const Target &target) {
    auto program = build("right.cu", target);
    auto ran = [&](const char *kernel, const string &report, double error, double tolerance) {
        bool is_right = report.empty() && error <= tolerance;
        expect(target.name() + kernel, is_right, report.empty() ? "off by " + std::to_string(error) : report);
    };
    const int R = 37, C = 301;
    vector<float> x = random(R * C), w = random(C, 2), b = random(C, 3);
    Floats X(x), W(w), B(b), Y(vector<float>(R * C));
    auto of = [](Floats &v) { return [&v](size_t i) { return (double)v[i]; }; };

    string report = launch(*program, "layer_norm", {R, 1, 1}, {256, 1, 1}, 0, X.p, W.p, B.p, Y.p, C, 1e-5f);
    vector<double> mean(R), variance(R), powers(R);
    for (int i = 0; i < R * C; i++) mean[i / C] += x[i] / (double)C, powers[i / C] += std::exp((double)x[i]);
    for (int i = 0; i < R * C; i++) variance[i / C] += std::pow(x[i] - mean[i / C], 2) / C;
    auto norm = [&](size_t i) { return (x[i] - mean[i / C]) / std::sqrt(variance[i / C] + 1e-5) * w[i % C] + b[i % C]; };
    ran("layer_norm", report, worst(R * C, of(Y), norm), 1e-5);
    auto softmax = [&](size_t i) { return std::exp((double)x[i]) / powers[i / C]; };
    report = launch(*program, "softmax", {R, 1, 1}, {192, 1, 1}, C * 4, X.p, Y.p, C);
    ran("softmax", report, worst(R * C, of(Y), softmax), 1e-6);
    memset(Y.p, 0, R * C * 4);
    unsigned waves = 128 / (unsigned)target.wave;
    report = launch(*program, "softmax_waves", {(R + waves - 1) / waves, 1, 1}, {128, 1, 1}, 0, X.p, Y.p, R, C);
    ran("softmax_waves", report, worst(R * C, of(Y), softmax), 1e-6);

    const int M = 45, N = 50, K = 61;
    vector<float> p = random(M * K, 5), q = random(K * N, 6);
    Floats P(p), Q(q), O(vector<float>(M * N));
    auto product = [&](size_t i) {
        double sum = 0;
        for (int k = 0; k < K; k++) sum += (double)p[i / N * K + k] * q[k * N + i % N];
        return sum;
    };
    report = launch(*program, "product16", {4, 3, 1}, {16, 16, 1}, 0, P.p, Q.p, O.p, M, N, K);
    ran("product16", report, worst(M * N, of(O), product), 1e-5);
    memset(O.p, 0, M * N * 4);
    report = launch(*program, "product8", {7, 6, 1}, {8, 8, 1}, 0, P.p, Q.p, O.p, M, N, K);
    ran("product8", report, worst(M * N, of(O), product), 1e-5);

    Floats S({0, 0}), flag({0});
    report = launch(*program, "sum", {5, 1, 1}, {256, 1, 1}, 0, X.p, S.p, R * C);
    double sum = 0;
    for (float v : x) sum += v;
    ran("sum", report, std::fabs(S[0] - sum), 1e-3);
    report = launch(*program, "hand_over", {1, 1, 1}, {128, 1, 1}, 0, X.p, S.p, flag.p);
    ran("hand_over", report, std::fabs(S[0] - 1), 0);
    struct {
        int a, gap[3];
        float v[4];
    } pair = {5, {}, {1, 2, 3, 4}};
    report = launch(*program, "by_value", {1, 1, 1}, {1, 1, 1}, 0, pair, S.p, (unsigned char)7, 0.5);
    ran("by_value", report, std::fabs(S[0] - 16.5), 0);
}

// ---- planted mistakes

struct Mistake {
    const char *kernel;
    // What the report must say: in a checked program, and in a fast one, if it says something there.
    const char *checked, *fast;
    uint3 grid = {1, 1, 1}, block = {128, 1, 1};
    int n = 128;
    size_t shared = 0;
    // Waves with which it is a mistake.
    int only_wave = 0;
};

static const Mistake MISTAKES[] = {
    {"missing_barrier", "__shared__ missing_barrier::part", nullptr},
    {"write_after_read", "no __syncthreads between them", nullptr, {2, 2, 1}, {16, 16, 1}, 32},
    {"no_tail_guard", "out-of-bounds write of 4 bytes at an allocation of 1000 bytes + 1000", nullptr, {2, 1, 1}, {128, 1, 1}, 250},
    {"behind_shared", "index outside of an array (128)", nullptr},
    {"behind_shared_pointer", "out-of-bounds read of 4 bytes at __shared__ behind_shared_pointer::s + 512", nullptr},
    {"dynamic_too_small", "out-of-bounds write of 4 bytes at dynamic shared memory + 508", nullptr, {1, 1, 1}, {128, 1, 1}, 128, 508},
    {"divergent_barrier", "divergent barrier: 64 threads wait", "divergent barrier: 64 threads wait"},
    {"early_return", "reached by 100 of 128 threads", "reached by 100 of 128 threads", {1, 1, 1}, {128, 1, 1}, 100},
    {"shuffle_after_return", "which takes no part", "which takes no part", {1, 1, 1}, {128, 1, 1}, 100},
    {"divergent_shuffle", "wave 0 diverges", "wave 0 diverges"},
    {"wave_in_step", "same wave: no __syncwarp", nullptr},
    {"unwritten_shared", "read of shared memory that was not written: __shared__ unwritten_shared::s + 480", nullptr, {1, 1, 1}, {128, 1, 1}, 120},
    {"race_of_blocks", "blocks have no order", nullptr, {4, 1, 1}, {128, 1, 1}, 512},
    {"double_write", "write of 4 bytes by thread (1,0,0)", nullptr},
    {"partial_wave", "which takes no part", "which takes no part", {1, 1, 1}, {96, 1, 1}, 96, 0, 64},
    {"behind_local", "index outside of an array (4)", nullptr, {1, 1, 1}, {1, 1, 1}, 10},
    {"unordered_flag", "data race on __shared__ unordered_flag::mean", nullptr},
    {"barrier_in_loop", "reached by 100 of 128 threads", "reached by 100 of 128 threads"},
};

// Launches of two threads of the host are two launches: what one wrote, the other may read.
static void two_threads() {
    Target target{false, true, 32};
    auto program = build("right.cu", target);
    const int R = 37, C = 301;
    Floats x(random(R * C)), y(vector<float>(R * C)), z(vector<float>(R * C));
    string first, second;
    std::thread([&] { first = launch(*program, "softmax_waves", {10, 1, 1}, {128, 1, 1}, 0, x.p, y.p, R, C); }).join();
    std::thread([&] { second = launch(*program, "softmax", {R, 1, 1}, {256, 1, 1}, C * sizeof(float), y.p, z.p, C); }).join();
    expect("launches_of_two_threads", first.empty() && second.empty(), first + second);
}

static void wrong(const Target &target) {
    auto program = build("wrong.cu", target);
    for (const Mistake &m : MISTAKES) {
        const char *wanted = target.is_checked ? m.checked : m.fast;
        if (m.only_wave && m.only_wave != target.wave) wanted = "";
        // A fast program has no duty to notice.
        if (!wanted) continue;
        size_t n = !strcmp(m.kernel, "write_after_read") ? 32 * 32 : (size_t)m.n;
        Floats x(random(n)), y(vector<float>(n < 128 ? 128 : n));
        if (!strcmp(m.kernel, "no_tail_guard")) y.~Floats(), new (&y) Floats(vector<float>(n));
        string report = launch(*program, m.kernel, m.grid, m.block, m.shared, x.p, y.p, m.n);
        bool holds = *wanted ? report.find(wanted) != string::npos : report.empty();
        // A report of a place names the line.
        bool has_line = !target.is_checked || report.empty() || report.find("wrong.cu:") != string::npos || report.find("returned:") != string::npos ||
                        report.find("prelude.h:") != string::npos;
        expect(target.name() + m.kernel, holds && has_line, "wanted `" + string(wanted) + "`, got `" + report + "`");
    }
    // Nothing is undefined in this one: only the result of a wave of 64 is wrong.
    vector<float> v = random(128);
    float sum = 0;
    for (float e : v) sum += e;
    Floats x(v), y(vector<float>(1));
    string report = launch(*program, "lanes_of_32", {1, 1, 1}, {128, 1, 1}, 0, x.p, y.p, 128);
    bool is_right = std::fabs(y[0] - sum) < 1e-3;
    expect(target.name() + "lanes_of_32", report.empty() && is_right == (target.wave == 32), report + std::to_string(y[0]));
}

// Without checks, a write behind the end is found when the memory is given back; and other orders of threads show races.
static void fast_build() {
    auto program = build("wrong.cu", {false, false, 32});
    void *y = simt::allocate(1000);
    Floats x(random(250));
    string report = launch(*program, "no_tail_guard", {2, 1, 1}, {128, 1, 1}, 0, x.p, y, 250);
    try {
        simt::release(y);
    } catch (const simt::Failure &why) {
        report += why.text;
    }
    expect("fast::no_tail_guard", report.find("written behind an allocation of 1000 bytes") != string::npos, report);
    float sum = 0;
    for (size_t i = 0; i < 128; i++) sum += x[i];
    int right = 0;
    for (int order : {0, 1, 7}) {
        simt::options().order = order;
        Floats z(vector<float>(128));
        launch(*program, "missing_barrier", {1, 1, 1}, {128, 1, 1}, 0, x.p, z.p, 128);
        right += worst(128, [&](size_t i) { return z[i]; }, [&](size_t) { return sum; }) < 1e-4;
    }
    simt::options().order = 0;
    expect("fast::orders", right < 3, "every order of threads hides the missing barrier");
}

// The layout of fragments is PTX's: the kernel gave this result on hardware.
static void matrix(bool is_checked) {
    const int M = 96, N = 64, K = 128;
    auto halves = [](size_t n, unsigned seed) {
        vector<unsigned short> v;
        for (float f : random(n, seed)) {
            unsigned bits;
            memcpy(&bits, &f, 4);
            v.push_back((unsigned short)(bits >> 16));
        }
        return v;
    };
    auto value = [](unsigned short h) {
        unsigned bits = (unsigned)h << 16;
        float f;
        memcpy(&f, &bits, 4);
        return (double)f;
    };
    vector<unsigned short> a = halves(M * K, 1), b = halves(N * K, 2);
    Buffer<unsigned short> A(a), B(b);
    Floats C(vector<float>(M * N));
    auto product = [&](size_t i) {
        double sum = 0;
        for (int k = 0; k < K; k++) sum += value(a[i / N * K + k]) * value(b[i % N * K + k]);
        return sum;
    };
    Target target = {false, is_checked, 32};
    for (const char *pending : {"1", "2"}) {
        auto program = build("matrix.cu", target, {string("-DPENDING=") + pending});
        string report = launch(*program, "product", {N / 32, M / 32, 1}, {128, 1, 1}, 0, A.p, B.p, C.p, M, N, K);
        double error = worst(M * N, [&](size_t i) { return C[i]; }, product);
        bool is_right = report.empty() && error < 1e-5, should_be = *pending == '1';
        expect(target.name() + "matrix::pending_" + pending, is_right == should_be, report + std::to_string(error));
    }
}

// The matrix instructions of AMD's architectures.
static void blocks(bool is_checked) {
    // Powers of 2, of which sums of products are exact, and what they are in f16 and bf16.
    const double values[] = {0.25, 0.5, 1, 2, 4};
    const unsigned short halves[2][5] = {{0x3400, 0x3800, 0x3c00, 0x4000, 0x4400}, {0x3e80, 0x3f00, 0x3f80, 0x4000, 0x4080}};
    auto at = [](int seed, size_t i) { return (i * i * 7 + i * 3 + (size_t)seed) % 5; };
    for (const char *name : {"gfx90a", "gfx1100", "gfx1201"})
        for (bool is_bf16 : {false, true}) {
            vector<unsigned short> a, b;
            for (size_t i = 0; i < 256; i++) a.push_back(halves[is_bf16][at(1, i)]), b.push_back(halves[is_bf16][at(2, i)]);
            Buffer<unsigned short> A(a), B(b);
            Floats D(vector<float>(256));
            unsigned wave = name[3] == '9' ? 64 : 32;
            Target target = {true, is_checked, (int)wave};
            vector<string> options = {string("--offload-arch=") + name, is_bf16 ? "-DBF16" : "-DF16"};
            auto program = build("blocks.hip", target, options);
            string report = launch(*program, "block", {1, 1, 1}, {wave, 1, 1}, 0, A.p, B.p, D.p);
            auto product = [&](size_t i) {
                double sum = 0;
                for (size_t k = 0; k < 16; k++) sum += values[at(1, i / 16 * 16 + k)] * values[at(2, k * 16 + i % 16)];
                return sum;
            };
            double error = worst(256, [&](size_t i) { return D[i]; }, product);
            string which = target.name() + "blocks::" + name + (is_bf16 ? "::bf16" : "::f16");
            expect(which, report.empty() && error == 0, report + std::to_string(error));
            report = launch(*program, "block", {1, 1, 1}, {wave - 1, 1, 1}, 0, A.p, B.p, D.p);
            expect(which + "::partial_wave", report.find("takes no part") != string::npos, report);
            if (strcmp(name, "gfx1100")) continue;
            options.push_back("-DHALVES_DIFFER");
            program = build("blocks.hip", target, options);
            report = launch(*program, "block", {1, 1, 1}, {wave, 1, 1}, 0, A.p, B.p, D.p);
            expect(which + "::halves_differ", report.find("other operands, which must be the same") != string::npos, report);
        }
}

static void refusals() {
    auto program = build("right.cu", {false, false, 32});
    Floats x(random(128));
    float on_host[4];
    void *gone = simt::allocate(64);
    simt::release(gone);
    auto refused = [&](const char *name, const string &report, const char *wanted) {
        expect(string("launch::") + name, report.find(wanted) != string::npos, report);
    };
    auto sum = [&](void *from, uint3 block, size_t shared) { return launch(*program, "sum", {1, 1, 1}, block, shared, from, x.p, 4); };
    refused("host_pointer", sum(on_host, {32, 1, 1}, 0), "points to no device memory");
    refused("freed_pointer", sum(gone, {32, 1, 1}, 0), "points to no device memory");
    refused("too_many_threads", sum(x.p, {2000, 1, 1}, 0), "2000 threads in a block");
    refused("too_much_shared", sum(x.p, {32, 1, 1}, 100000), "shared memory, the limit is");
    string report = launch(*program, "layer_norm", {1, 1, 1}, {512, 1, 1}, 0, x.p, x.p, x.p, x.p, 4, 0.0f);
    refused("launch_bounds", report, "__launch_bounds__ says 256");
}

// ---- the drivers, whose two sets of functions differ in little but names

struct Driver {
    void *library;
    bool is_hip;
    template <class... A> int operator()(const char *cuda, const char *hip, A... arguments) const {
        auto *f = (int (*)(A...))dlsym(library, is_hip ? hip : cuda);
        if (!f) {
            printf("there is no %s\n", is_hip ? hip : cuda);
            exit(1);
        }
        return f(arguments...);
    }
    string last_error(int code) const {
        const char *text = "";
        if (is_hip) return ((const char *(*)(int))dlsym(library, "hipGetErrorString"))(code);
        ((int (*)(int, const char **))dlsym(library, "cuGetErrorString"))(code, &text);
        return text;
    }
};

static void host(bool is_hip) {
    string prefix = is_hip ? "hip::host::" : "cuda::host::";
    char folder[] = "/tmp/simt-recording-XXXXXX";
    // Before the library reads it.
    if (!mkdtemp(folder) || setenv("SIMT_RECORD", folder, 1)) exit(1);
    Driver call = {dlopen(is_hip ? "libamdhip64.so" : "libcuda.so", RTLD_NOW), is_hip};
    if (!call.library) {
        printf("%s\n", dlerror());
        exit(1);
    }
    auto is = [&](const char *name, int got, int wanted) { expect(prefix + name, got == wanted, std::to_string(got) + " " + call.last_error(got)); };
    void *program, *module, *function, *stream, *x, *pinned;
    string text = read("right.cu"), header = read("prelude.h");
    const char *contents = header.c_str(), *name = "prelude.h";
    call("cuInit", "hipInit", 0u);
    call("nvrtcCreateProgram", "hiprtcCreateProgram", &program, text.c_str(), "right.cu", 1, &contents, &name);
    is("compile", call("nvrtcCompileProgram", "hiprtcCompileProgram", program, 0, (const char **)nullptr), 0);
    size_t size = 0;
    call("nvrtcGetCUBINSize", "hiprtcGetCodeSize", program, &size);
    string code(size, 0);
    call("nvrtcGetCUBIN", "hiprtcGetCode", program, &code[0]);
    is("load", call("cuModuleLoadData", "hipModuleLoadData", &module, (const void *)code.data()), 0);
    is("function", call("cuModuleGetFunction", "hipModuleGetFunction", &function, module, "sum"), 0);
    is("no_function", call("cuModuleGetFunction", "hipModuleGetFunction", &x, module, "product"), 500);
    call("cuStreamCreate", "hipStreamCreateWithFlags", &stream, 1u);
    call("cuMemAlloc_v2", "hipMalloc", &x, (size_t)256);
    call("cuMemHostAlloc", "hipHostMalloc", &pinned, (size_t)256, 0u);
    float *values = (float *)pinned;
    int n = 64;
    void *y = (char *)x + 128, *arguments[] = {&x, &y, &n};
    auto fill = [&](unsigned v) { return call("cuMemsetD32Async", "hipMemsetD32Async", x, v, (size_t)64, stream); };
    auto back = [&] { return call("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", pinned, x, (size_t)256, stream); };
    auto wait = [&] { return call("cuStreamSynchronize", "hipStreamSynchronize", stream); };
    auto start = [&](unsigned threads) {
        return call("cuLaunchKernel", "hipModuleLaunchKernel", function, 1u, 1u, 1u, threads, 1u, 1u, 0u, stream, arguments, (void **)nullptr);
    };

    // A result that is read before anything has waited is not there.
    values[0] = -7;
    fill(0);
    back();
    expect(prefix + "early_read", values[0] == -7, "a copy has run before it was waited for");
    is("wait", wait(), 0);
    expect(prefix + "late_read", values[0] == 0, "a copy has not run when it was waited for");
    is("copy_behind_the_end", call("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", pinned, y, (size_t)256, stream) || wait(), 1);
    // The arguments are taken at the launch; a launch that must not run is an error of the wait.
    n = 32;
    start(64);
    n = 1 << 20;
    is("arguments_are_copied", wait(), 0);
    is("too_many_threads", start(2000) || wait() == 719, 1);
    expect(prefix + "error_text", call.last_error(719).find("launch of `sum` refused: 2000 threads") != string::npos, call.last_error(719));

    // A capture runs nothing; its graph runs whenever it is launched.
    void *graph, *executable;
    n = 0;
    fill(0x3f800000);
    wait();
    is("begin_capture", call("cuStreamBeginCapture_v2", "hipStreamBeginCapture", stream, 0), 0);
    fill(0x40000000);
    back();
    is("wait_in_capture", wait(), 900);
    is("invalid_capture", call("cuStreamEndCapture", "hipStreamEndCapture", stream, &graph), 901);
    call("cuStreamBeginCapture_v2", "hipStreamBeginCapture", stream, 0);
    void *other;
    is("allocation_in_capture", call("cuMemAlloc_v2", "hipMalloc", &other, (size_t)64), 900);
    call("cuStreamEndCapture", "hipStreamEndCapture", stream, &graph);
    call("cuStreamBeginCapture_v2", "hipStreamBeginCapture", stream, 2);
    fill(0x40000000);
    back();
    is("relaxed_capture", call("cuMemAlloc_v2", "hipMalloc", &other, (size_t)64), 0);
    is("end_capture", call("cuStreamEndCapture", "hipStreamEndCapture", stream, &graph), 0);
    back();
    wait();
    expect(prefix + "capture_runs_nothing", values[0] == 1, std::to_string(values[0]));
    is("instantiate", call("cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags", &executable, graph, 0ull), 0);
    call("cuGraphDestroy", "hipGraphDestroy", graph);
    for (int turn = 0; turn < 2; turn++) {
        values[0] = 0;
        call("cuGraphLaunch", "hipGraphLaunch", executable, stream);
        wait();
        expect(prefix + "graph", values[0] == 2, std::to_string(values[0]));
    }
    is("destroy_executable", call("cuGraphExecDestroy", "hipGraphExecDestroy", executable), 0);

    // Events have the times at which the stream came to them.
    void *from, *to;
    float milliseconds = -1;
    call("cuEventCreate", "hipEventCreateWithFlags", &from, 0u);
    call("cuEventCreate", "hipEventCreateWithFlags", &to, 0u);
    call("cuEventRecord", "hipEventRecord", from, stream);
    fill(0);
    call("cuEventRecord", "hipEventRecord", to, stream);
    is("event_is_not_ready", call("cuEventElapsedTime", "hipEventElapsedTime", &milliseconds, from, to), 600);
    is("event", call("cuEventSynchronize", "hipEventSynchronize", to), 0);
    is("elapsed", call("cuEventElapsedTime", "hipEventElapsedTime", &milliseconds, from, to), 0);
    expect(prefix + "time", milliseconds >= 0, std::to_string(milliseconds));

    // A wait is for the record that there was when it was enqueued, and not for a later one.
    void *second;
    call("cuStreamCreate", "hipStreamCreateWithFlags", &second, 1u);
    fill(0x3f800000);
    call("cuEventRecord", "hipEventRecord", to, stream);
    is("wait_for_event", call("cuStreamWaitEvent", "hipStreamWaitEvent", second, to, 0u), 0);
    call("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", pinned, x, (size_t)256, second);
    fill(0x40000000);
    call("cuEventRecord", "hipEventRecord", to, stream);
    call("cuStreamSynchronize", "hipStreamSynchronize", second);
    expect(prefix + "first_record", values[0] == 1, std::to_string(values[0]));
    is("free", call("cuMemFree_v2", "hipFree", x), 0);
    is("freed_twice", call("cuMemFree_v2", "hipFree", x), 1);

    // The launch that ran has left a recording.
    int launches = 0;
    if (DIR *entries = opendir(folder)) {
        while (dirent *entry = readdir(entries)) launches += strstr(entry->d_name, ".launch") != nullptr;
        closedir(entries);
    }
    is("recording", launches, 1);
    if (system((string("rm -rf ") + folder).c_str())) exit(1);
}

int main() {
    for (bool is_checked : {false, true})
        for (Target target : {Target{false, is_checked, 32}, Target{true, is_checked, 32}, Target{true, is_checked, 64}})
            for (int order : {0, 1, 7}) {
                simt::options().order = order;
                right(target);
                if (!order) wrong(target);
            }
    simt::options().order = 0;
    fast_build();
    matrix(false);
    matrix(true);
    blocks(false);
    blocks(true);
    refusals();
    simt::options().is_checked = true;
    two_threads();
    simt::options().is_checked = false;
    host(false);
    host(true);
    printf("simt: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}

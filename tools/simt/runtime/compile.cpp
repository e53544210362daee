// The compile driver: preprocesses a source, reads its kernels out of it, compiles and links. Clang is the compiler.
#include "internal.h"
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char **environ;
// The digest of the tool's sources, from build.sh.
extern "C" __attribute__((visibility("default"))) const char simt_build[];
const char simt_build[] = SIMT_BUILD;

namespace simt {

// ---- what all parts use

std::string text(const char *format, ...) {
    char buffer[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, sizeof buffer, format, arguments);
    va_end(arguments);
    return buffer;
}

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

Options &options() {
    auto number = [](const char *name, int otherwise) { return atoi(setting(name, std::to_string(otherwise).c_str())); };
    static Options all = {number("SIMT_THREADS", (int)std::thread::hardware_concurrency()), number("SIMT_ORDER", 0),
                          number("SIMT_STRICT", 1) != 0, number("SIMT_INITCHECK", 0) != 0, number("SIMT_CHECK", 0) != 0};
    return all;
}

const char *build() { return simt_build; }

int run(const std::vector<std::string> &command, const std::string &errors) {
    std::vector<char *> words;
    for (const std::string &word : command) words.push_back((char *)word.c_str());
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    pid_t child;
    int refused = posix_spawnp(&child, words[0], &actions, nullptr, words.data(), environ), status = 1;
    posix_spawn_file_actions_destroy(&actions);
    if (refused) return 127;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

std::string read_file(const std::string &path) {
    std::string all;
    char buffer[65536];
    if (FILE *file = fopen(path.c_str(), "rb")) {
        for (size_t n; (n = fread(buffer, 1, sizeof buffer, file));) all.append(buffer, n);
        fclose(file);
    }
    return all;
}

bool write_file(const std::string &path, const std::string &bytes) {
    FILE *file = fopen(path.c_str(), "wb");
    if (!file) return false;
    bool is_whole = fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    return !fclose(file) && is_whole;
}

std::string temporary(const char *suffix) {
    static std::atomic<unsigned> serial{0};
    return text("%s/simt-%d-%u%s", setting("TMPDIR", "/tmp"), getpid(), serial++, suffix);
}

// ---- reading a preprocessed source

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static size_t skip_space(const std::string &s, size_t at) {
    while (at < s.size() && isspace((unsigned char)s[at])) at++;
    return at;
}

static std::string word_at(const std::string &s, size_t at) {
    size_t end = at;
    while (end < s.size() && is_word(s[end])) end++;
    return s.substr(at, end - at);
}

// Behind the bracket that closes the one at `at`.
static size_t skip_brackets(const std::string &s, size_t at) {
    int depth = 0;
    bool is_quoted = false;
    for (; at < s.size(); at++) {
        if (s[at] == '"' && s[at - 1] != '\\') is_quoted = !is_quoted;
        if (is_quoted) continue;
        if (s[at] == '(') depth++;
        else if (s[at] == ')' && !--depth) return at + 1;
    }
    return at;
}

// The next place of a whole word.
static size_t find_word(const std::string &s, const char *word, size_t from) {
    size_t n = strlen(word);
    for (size_t at = from; (at = s.find(word, at)) != std::string::npos; at += n)
        if ((!at || !is_word(s[at - 1])) && !is_word(s[at + n])) return at;
    return std::string::npos;
}

static void erase_calls(std::string &s, const char *name) {
    for (size_t at; (at = find_word(s, name, 0)) != std::string::npos;) s.erase(at, skip_brackets(s, s.find('(', at)) - at);
}

// `extern __shared__ T name[];` becomes `T *const name = simt_dynamic();`, whose bounds are the launch's.
static void rewrite_dynamic_shared(std::string &s) {
    for (size_t at = 0; (at = find_word(s, "extern", at)) != std::string::npos; at++) {
        size_t shared = skip_space(s, at + 6), semicolon = s.find(';', at), bracket = s.find('[', at);
        if (word_at(s, shared) != "__shared__" || bracket > semicolon) continue;
        std::string type = s.substr(shared + 10, bracket - shared - 10);
        erase_calls(type, "__align__");
        erase_calls(type, "__attribute__");
        erase_calls(type, "alignas");
        size_t end = type.find_last_not_of(" \t\n") + 1, begin = end;
        while (begin && is_word(type[begin - 1])) begin--;
        std::string name = type.substr(begin, end - begin);
        s.replace(at, semicolon - at, type.substr(0, begin) + "*const " + name + " = simt_dynamic()");
    }
}

// Unrolled loops run no sooner here, and take a compiler ten times as long.
static void erase_unrolling(std::string &s) {
    for (size_t at = 0; (at = s.find("#pragma unroll", at)) != std::string::npos;) s.erase(at, s.find('\n', at) - at);
}

// A `simt_kernel` for every kernel that is defined.
static std::string describe_kernels(const std::string &s) {
    std::string all;
    for (size_t at = 0; (at = find_word(s, "__global__", at)) != std::string::npos;) {
        at += strlen("__global__");
        std::string name, bounds;
        while (name.empty()) {
            at = skip_space(s, at);
            std::string word = word_at(s, at);
            if (word.empty()) break;
            size_t open = skip_space(s, at + word.size()), close = s[open] == '(' ? skip_brackets(s, open) : open;
            if (word == "__launch_bounds__") bounds = s.substr(open + 1, close - open - 2);
            else if (word != "__attribute__" && s[open] == '(') name = word;
            at = name.empty() ? close : open;
        }
        if (name.empty() || s[skip_space(s, skip_brackets(s, at))] != '{') continue;
        std::string thunk = "simt_thunk<&" + name + ">", symbol = "simt_kernel_" + name;
        all += "SIMT_EXPORT __attribute__((used, no_sanitize(\"address\"))) const simt_kernel " + symbol + ";\n";
        all += "const simt_kernel " + symbol + " = {\"" + name + "\", &" + thunk + "::call, " + thunk + "::n, simt_bound(" + bounds +
               "), " + thunk + "::arguments};\n";
    }
    return all;
}

static std::string rewrite(std::string s) {
    rewrite_dynamic_shared(s);
    erase_unrolling(s);
    std::string kernels = describe_kernels(s);
    // Only with internal linkage do static shared variables of templates and inline functions get red zones.
    return "namespace {\n" + s + "\n}\n# 1 \"kernels\"\n" + kernels;
}

// ---- the compiler

// The one that built this, if the environment names no other.
static std::string compiler() { return setting("SIMT_CXX", SIMT_COMPILER); }

// Where this library lies; the device headers are beside it.
static std::string own_path() {
    static const std::string path = [] {
        Dl_info info;
        dladdr((void *)simt_build, &info);
        char *absolute = realpath(info.dli_fname, nullptr);
        std::string found = absolute ? absolute : info.dli_fname;
        free(absolute);
        return found;
    }();
    return path;
}

static std::string headers() {
    std::string path = own_path();
    return path.substr(0, path.rfind('/')) + "/device";
}

static std::vector<std::string> language() { return {"-std=c++17", "-nostdinc++", "-fno-exceptions", "-fno-rtti"}; }

// Everything that the precompiled header depends on, too.
static std::vector<std::string> code_options(const Source &source) {
    std::vector<std::string> all = language();
    for (const char *option : {"-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-plt", "-gline-tables-only", "-w",
                               "-fno-stack-protector", "-Xclang", "-fconvergent-functions"})
        all.push_back(option);
    // GPUs contract a product and a sum, and so does a processor that can.
    bool is_contracted = true;
    for (const std::string &option : source.options) is_contracted &= option != "--fmad=false" && option != "-ffp-contract=off";
    all.push_back(is_contracted ? "-ffp-contract=fast" : "-ffp-contract=off");
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma")) all.push_back("-mfma");
#endif
    all.push_back(text("-DSIMT_WAVE=%d", source.wave));
    all.push_back(text("-DSIMT_HIP=%d", source.is_hip));
    all.push_back(text("-DSIMT_CHECKED=%d", options().is_checked));
    if (!options().is_checked) {
        all.push_back("-O2");
        return all;
    }
    // The sanitizer's calls go to check.cpp; nothing of its runtime is linked.
    for (const char *option :
         {"-O1", "-fsanitize=address", "-fsanitize=array-bounds,shift,integer-divide-by-zero,float-cast-overflow", "-fno-omit-frame-pointer",
          "-fno-optimize-sibling-calls", "-fno-vectorize", "-fno-slp-vectorize", "-mllvm", "-asan-instrumentation-with-call-threshold=0",
          "-mllvm", "-asan-stack=0", "-mllvm", "-asan-opt=0", "-mllvm", "-asan-opt-globals=0"})
        all.push_back(option);
    return all;
}

// Definitions and folders of headers, as clang spells them, and what the languages define.
static std::vector<std::string> definitions(const Source &source) {
    std::vector<std::string> all = {"-DSIMT=1", text("-DwarpSize=%d", source.wave), text("-DSIMT_WAVE=%d", source.wave)};
    std::string architecture = "800";
    const std::pair<const char *, const char *> longer[] = {{"--include-path=", "-I"}, {"--define-macro=", "-D"}, {"--undefine-macro=", "-U"}};
    for (size_t i = 0; i < source.options.size(); i++) {
        std::string o = source.options[i];
        for (auto &[from, to] : longer)
            if (!o.compare(0, strlen(from), from)) o = to + o.substr(strlen(from));
        if (o.size() == 2 && o[0] == '-' && strchr("DIU", o[1]) && i + 1 < source.options.size()) o += source.options[++i];
        if (o.size() > 2 && o[0] == '-' && strchr("DIU", o[1])) all.push_back(o);
        size_t sm = o.find("arch");
        if (sm != std::string::npos && (sm = o.find("=sm_")) != std::string::npos) architecture = std::to_string(atoi(o.c_str() + sm + 4) * 10);
        // `--offload-arch=gfx90a:xnack-` defines the architecture and its family, whose number is all but the last two characters.
        size_t gfx = o.find("-arch=gfx");
        if (gfx == std::string::npos) continue;
        std::string name = word_at(o, gfx + strlen("-arch="));
        all.push_back("-D__" + name + "__=1");
        if (name.size() > 5) all.push_back("-D__GFX" + name.substr(3, name.size() - 5) + "__=1");
    }
    if (source.is_hip)
        for (const char *name : {"__HIP_PLATFORM_AMD__", "__HIPCC__", "__HIPCC_RTC__", "__HIP_DEVICE_COMPILE__"})
            all.push_back(std::string("-D") + name + "=1");
    else
        for (std::string name : {"__CUDACC__=1", "__CUDACC_RTC__=1", "__NVCC__=1"}) all.push_back("-D" + name);
    if (!source.is_hip) all.push_back("-D__CUDA_ARCH__=" + architecture);
    return all;
}

// A folder that goes with everything in it.
struct Folder {
    std::string path = temporary(".d");
    Folder() { mkdir(path.c_str(), 0700); }
    ~Folder() {
        std::error_code ignored;
        if (!getenv("SIMT_KEEP")) std::filesystem::remove_all(path, ignored);
    }
    std::string operator/(const std::string &name) const { return path + "/" + name; }
};

struct Digest {
    uint64_t halves[2] = {14695981039346656037ull, 0x9e3779b97f4a7c15ull};
    void add(const std::string &s) {
        for (unsigned char c : s + '\0')
            for (uint64_t &h : halves) h = (h ^ c) * 1099511628211ull + 1;
    }
    std::string name() const { return text("%016llx%016llx", (unsigned long long)halves[0], (unsigned long long)halves[1]); }
};

// The folder of compiled programs; empty if there is none.
static std::string cache() {
    if (const char *own = getenv("SIMT_CACHE")) {
        if (*own) mkdir(own, 0777);
        return own;
    }
    const char *home = getenv("HOME"), *system_cache = getenv("XDG_CACHE_HOME");
    if (!home && !system_cache) return "";
    std::string folder = system_cache ? system_cache : std::string(home) + "/.cache";
    mkdir(folder.c_str(), 0777);
    folder += "/simt";
    mkdir(folder.c_str(), 0777);
    return folder;
}

// Written aside and renamed, so that nobody sees a part.
static void keep(const std::string &path, const std::string &bytes) {
    std::string aside = text("%s.%d-%u", path.c_str(), getpid(), (unsigned)(uintptr_t)&path);
    if (write_file(aside, bytes)) rename(aside.c_str(), path.c_str());
}

static void must(const std::vector<std::string> &command, const Folder &folder) {
    int status = run(command, folder / "log");
    if (status == 127) throw Failure{command[0] + " cannot be started; SIMT_CXX names another clang++"};
    if (status) throw Failure{read_file(folder / "log")};
}

// The device headers, precompiled with these options: made once by each process that compiles, or found in the cache.
static std::string precompiled(const std::vector<std::string> &code) {
    static std::mutex lock;
    static std::map<std::string, std::string> made;
    std::lock_guard<std::mutex> guard(lock);
    Digest digest;
    digest.add(simt_build);
    digest.add(compiler());
    digest.add(headers());
    for (const std::string &option : code) digest.add(option);
    std::string &path = made[digest.name()];
    if (!path.empty()) return path;
    std::string kept = cache().empty() ? temporary(".pch") : cache() + "/" + digest.name() + ".pch";
    if (access(kept.c_str(), R_OK)) {
        Folder folder;
        // Its name says what the headers were; when they were copied is of no matter.
        std::vector<std::string> command = {compiler(), "-x", "c++-header", "-Xclang", "-fno-pch-timestamp"};
        command.insert(command.end(), code.begin(), code.end());
        for (const std::string &word : {headers() + "/simt.h", std::string("-o"), folder / "simt.pch"}) command.push_back(word);
        must(command, folder);
        keep(kept, read_file(folder / "simt.pch"));
    }
    return path = kept;
}

std::string compile(const Source &source) {
    Folder folder;
    size_t slash = source.name.rfind('/');
    std::string name = slash == std::string::npos ? source.name : source.name.substr(slash + 1);
    std::string given = folder / (name.empty() ? "program" : name), preprocessed = given + ".ii", object = given + ".o", linked = given + ".so";
    write_file(given, source.text);
    for (auto &[header, contents] : source.headers) write_file(folder / header, contents);

    std::vector<std::string> command = {compiler(), "-E", "-x", "c++", "-I" + folder.path};
    for (auto &options : {language(), definitions(source)}) command.insert(command.end(), options.begin(), options.end());
    for (const std::string &word : {given, std::string("-o"), preprocessed}) command.push_back(word);
    must(command, folder);
    std::string program = rewrite(read_file(preprocessed));
    // Lines are named after the file, wherever that lay.
    for (size_t at; (at = program.find(folder.path + "/")) != std::string::npos;) program.erase(at, folder.path.size() + 1);

    std::vector<std::string> code = code_options(source);
    Digest digest;
    for (const std::string &part : {std::string(simt_build), compiler(), program}) digest.add(part);
    for (const std::string &option : code) digest.add(option);
    std::string kept = cache().empty() ? "" : cache() + "/" + digest.name() + ".so";
    std::string bytes = kept.empty() ? "" : read_file(kept);
    if (!bytes.empty()) return bytes;

    write_file(preprocessed, program);
    command = {compiler(), "-x", "c++", "-c"};
    command.insert(command.end(), code.begin(), code.end());
    for (const std::string &word : {std::string("-include-pch"), precompiled(code), preprocessed, std::string("-o"), object}) command.push_back(word);
    must(command, folder);
    must({"ld", "-shared", object, own_path(), "-o", linked}, folder);
    bytes = read_file(linked);
    if (!kept.empty()) keep(kept, bytes);
    return bytes;
}

} // namespace simt

// Loading compiled programs, and reading in them.
#include "internal.h"
#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

namespace simt {

// The program that is being loaded: its initialisers tell of its globals.
static std::mutex loading;
static std::vector<AsanGlobal> registered;

static void registers(const void *begin, const void *end) {
    registered.insert(registered.end(), (const AsanGlobal *)begin, (const AsanGlobal *)end);
}

// Address and size of a section, as it is linked.
static bool section(const std::string &bytes, const char *name, uintptr_t &at, uintptr_t &size) {
    auto *header = (const Elf64_Ehdr *)bytes.data();
    auto *sections = (const Elf64_Shdr *)(bytes.data() + header->e_shoff);
    const char *names = bytes.data() + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++)
        if (!strcmp(names + sections[i].sh_name, name)) {
            at = sections[i].sh_addr;
            size = sections[i].sh_size;
            return true;
        }
    return false;
}

Region *Program::global_at(uintptr_t at) {
    auto next = std::upper_bound(globals.begin(), globals.end(), at, [](uintptr_t a, const Region &r) { return a < r.low; });
    return next == globals.begin() ? nullptr : &*std::prev(next);
}

Program::~Program() {
    if (handle) dlclose(handle);
    unlink(path.c_str());
}

Local local_of(const Program &program) {
    struct Query {
        uintptr_t base;
        Local found;
    } query = {program.base, {nullptr, 0}};
    program.description->touch();
    auto look = [](dl_phdr_info *info, size_t, void *data) {
        auto *q = (Query *)data;
        if (info->dlpi_addr != q->base) return 0;
        for (int i = 0; i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_TLS) q->found = {(char *)info->dlpi_tls_data, info->dlpi_phdr[i].p_memsz};
        return 1;
    };
    dl_iterate_phdr(look, &query);
    return query.found;
}

static void find_globals(Program &p, const std::string &bytes, const std::vector<AsanGlobal> &globals) {
    uintptr_t at, size;
    if (section(bytes, ".simt_shared", at, size)) {
        p.shared.low = p.base + at;
        p.shared.high = p.shared.low + size;
    }
    p.shared.name = "shared memory";
    p.shared.is_shared = true;
    for (const AsanGlobal &g : globals) {
        Region r;
        r.low = g.begin;
        r.high = g.begin + g.size;
        r.is_shared = p.shared.holds(r.low, 1);
        r.name = (r.is_shared ? "__shared__ " : "") + std::string(g.name);
        if (r.is_shared) p.static_shared += g.size;
        p.globals.push_back(r);
    }
    std::sort(p.globals.begin(), p.globals.end(), [](const Region &a, const Region &b) { return a.low < b.low; });
    for (at = p.shared.low; at < p.shared.high; at += 16) p.slots.push_back(p.global_at(at));
}

std::shared_ptr<Program> load(const std::string &bytes) {
    auto program = std::make_shared<Program>();
    program->path = temporary(".so");
    if (!write_file(program->path, bytes)) throw Failure{"cannot write " + program->path};
    std::lock_guard<std::mutex> guard(loading);
    registered.clear();
    program->handle = dlopen(program->path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!program->handle) throw Failure{text("a program cannot be loaded: %s", dlerror())};
    auto *description = (const simt_description *)dlsym(program->handle, "simt_program");
    auto *made_by = (const char *)dlsym(program->handle, "simt_build");
    if (!description || !made_by || strcmp(made_by, build())) throw Failure{"a program was compiled by another build of the emulator"};
    program->description = description;
    link_map *map;
    dlinfo(program->handle, RTLD_DI_LINKMAP, &map);
    program->base = map->l_addr;
    if (description->is_checked) find_globals(*program, bytes, registered);
    else program->static_shared = local_of(*program).bytes;
    return program;
}

const simt_kernel *find_kernel(const Program &program, const char *name) {
    return (const simt_kernel *)dlsym(program.handle, text("simt_kernel_%s", name).c_str());
}

size_t static_shared(const Program &program) { return program.static_shared; }

// The first of these that is installed.
static std::string symbolizer() {
    for (std::string version : {"", "-15", "-16", "-17", "-18", "-19", "-20", "-21", "-22"}) {
        std::string name = "llvm-symbolizer" + version;
        if (!system(("command -v " + name + " >/dev/null 2>&1").c_str())) return name + " -s --functions=none -e";
    }
    return "addr2line -sie";
}

// Lines innermost first, without those of the device headers.
std::string line_of(const Program &program, uint32_t site) {
    static std::mutex lock;
    static std::map<std::string, std::string> known;
    static const std::string tool = symbolizer();
    std::string command = text("%s %s %#x 2>/dev/null", tool.c_str(), program.path.c_str(), site - 1);
    std::lock_guard<std::mutex> guard(lock);
    std::string &lines = known[command];
    if (!lines.empty()) return lines;
    if (FILE *answer = popen(command.c_str(), "r")) {
        char line[1024];
        while (fgets(line, sizeof line, answer)) {
            line[strcspn(line, " \n")] = 0;
            char *colon = strchr(line, ':'), *column = colon ? strchr(colon + 1, ':') : nullptr;
            if (column) *column = 0;
            bool is_header = !strncmp(line, "simt.h:", 7) || !strncmp(line, "matrix.h:", 9);
            if (*line && !is_header && strncmp(line, "??", 2)) lines += (lines.empty() ? "" : " < ") + std::string(line);
        }
        pclose(answer);
    }
    if (lines.empty()) lines = text("address %#x of the program", site);
    return lines;
}

} // namespace simt

// What the instrumentation calls when a program is loaded. `flag` marks what was registered already.
SIMT_EXPORT void __asan_register_elf_globals(uintptr_t *, const void *begin, const void *end) { simt::registers(begin, end); }
SIMT_EXPORT void __asan_unregister_elf_globals(uintptr_t *, const void *, const void *) {}
SIMT_EXPORT void __asan_register_globals(const void *begin, size_t n) { simt::registers(begin, (const simt::AsanGlobal *)begin + n); }
SIMT_EXPORT void __asan_unregister_globals(const void *, size_t) {}
SIMT_EXPORT void __asan_init() {}
SIMT_EXPORT void __asan_version_mismatch_check_v8() {}
SIMT_EXPORT void __asan_before_dynamic_init(uintptr_t) {}
SIMT_EXPORT void __asan_after_dynamic_init() {}
SIMT_EXPORT void __asan_handle_no_return() {}
SIMT_EXPORT int __asan_option_detect_stack_use_after_return;
int __asan_option_detect_stack_use_after_return = 0;

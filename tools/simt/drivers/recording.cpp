#include "recording.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>

namespace recording {

static const char *folder() {
    static const char *path = getenv("SIMT_RECORD");
    return path && *path ? path : nullptr;
}

bool is_on() { return folder() != nullptr; }

std::string digest(const std::string &code) {
    uint64_t hash = 14695981039346656037ull;
    for (unsigned char c : code) hash = (hash ^ c) * 1099511628211ull;
    char name[17];
    snprintf(name, sizeof name, "%016llx", (unsigned long long)hash);
    return name;
}

static void write(const std::string &path, const void *bytes, size_t n) {
    FILE *file = fopen(path.c_str(), "wb");
    if (!file || fwrite(bytes, 1, n, file) != n) perror(path.c_str());
    if (file) fclose(file);
}

void keep(const simt::Source &source, const std::string &code) {
    if (!is_on()) return;
    std::string path = std::string(folder()) + "/" + digest(code), options;
    mkdir(folder(), 0777);
    mkdir(path.c_str(), 0777);
    write(path + "/source", source.text.data(), source.text.size());
    for (auto &[name, contents] : source.headers) write(path + "/" + name, contents.data(), contents.size());
    for (const std::string &option : source.options) options += option + "\n";
    write(path + "/options", options.data(), options.size());
}

Launch::Launch(const std::string &digest, const simt_kernel *kernel, const simt::Geometry &g, const std::vector<void *> &arguments) {
    if (!is_on()) return;
    static std::atomic<unsigned> serial{0};
    char line[512];
    snprintf(line, sizeof line, "/%d-%06u", getpid(), serial++);
    stem = folder() + std::string(line);
    snprintf(line, sizeof line, "program %s\nkernel %s\ngrid %u %u %u\nblock %u %u %u\nshared %zu\n", digest.c_str(), kernel->name, g.grid.x,
             g.grid.y, g.grid.z, g.block.x, g.block.y, g.block.z, g.dynamic_shared);
    description = line;
    for (unsigned i = 0; i < kernel->n_arguments; i++) {
        simt::Allocation buffer = {nullptr, 0};
        char *p = nullptr;
        if (kernel->arguments[i].is_pointer) {
            memcpy(&p, arguments[i], sizeof p);
            buffer = simt::allocation_of(p);
        }
        if (!buffer.at) {
            description += "value ";
            for (unsigned b = 0; b < kernel->arguments[i].size; b++) {
                snprintf(line, sizeof line, "%02x", ((unsigned char *)arguments[i])[b]);
                description += line;
            }
            description += "\n";
            continue;
        }
        size_t which = 0;
        while (which < buffers.size() && buffers[which].at != buffer.at) which++;
        if (which == buffers.size()) {
            buffers.push_back(buffer);
            write(stem + ".before" + std::to_string(which), buffer.at, buffer.bytes);
        }
        snprintf(line, sizeof line, "pointer %zu %zu\n", which, (size_t)(p - (char *)buffer.at));
        description += line;
    }
}

void Launch::finish() {
    if (!is_on()) return;
    for (size_t i = 0; i < buffers.size(); i++) write(stem + ".after" + std::to_string(i), buffers[i].at, buffers[i].bytes);
    // Last: a launch without it did not come to its end.
    write(stem + ".launch", description.data(), description.size());
}

} // namespace recording

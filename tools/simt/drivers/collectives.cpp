// libnccl.so and librccl.so: collectives among the threads of one process, each with a stream.
//
// A collective is one operation for all ranks. It runs in a stream of its own, after what each rank's stream had when the rank called;
// each rank's stream waits for it. A call returns when all ranks have made it, so that ranks that call in another order hang.
#include "driver.h"
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
using namespace driver;
using Handle = void *;

namespace {

enum { Ok = 0, SystemError = 2, InvalidArgument = 4, InvalidUsage = 5 };
enum class Kind { AllReduce, Broadcast, AllGather, ReduceScatter, Messages };
enum { Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16 };
enum { Sum, Prod, Max, Min, Avg };

struct Message {
    const void *from;
    void *to;
    size_t bytes;
    int peer;
};

// What a rank has asked for.
struct Call {
    Kind kind;
    const void *from;
    void *to;
    size_t count;
    int type, number;
    Handle stream, before;
    std::vector<Message> sends, receives;
};

struct Identity {
    char bytes[128];
};

struct Group {
    int size = 0, joined = 0, left = 0;
    unsigned long round = 0;
    std::vector<Call> calls;
    Handle stream = nullptr, after = nullptr;
    bool is_aborted = false;
    int code = Ok;
};

struct Member {
    std::shared_ptr<Group> group;
    int rank;
};

// Never destroyed: a thread may still wait for a rank when the process ends, and the end would wait for the thread.
std::mutex &lock = *new std::mutex;
std::condition_variable &changed = *new std::condition_variable;
std::map<std::string, std::shared_ptr<Group>> &groups = *new std::map<std::string, std::shared_ptr<Group>>;
thread_local std::string why = "";
thread_local bool is_open;
thread_local std::vector<std::pair<Member *, Call>> opened;

int fail(int code, const std::string &text) {
    why = text;
    return code;
}

size_t size_of(int type) {
    switch (type) {
    case Int8: case Uint8: return 1;
    case Float16: case Bfloat16: return 2;
    case Int32: case Uint32: case Float32: return 4;
    default: return 8;
    }
}

double get(const void *p, size_t i, int type) {
    switch (type) {
    case Uint8: return ((const uint8_t *)p)[i];
    case Int32: return ((const int32_t *)p)[i];
    case Int64: return (double)((const int64_t *)p)[i];
    case Float16: return (double)((const _Float16 *)p)[i];
    case Float32: return ((const float *)p)[i];
    case Float64: return ((const double *)p)[i];
    default: {
        uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        float v;
        memcpy(&v, &bits, 4);
        return v;
    }
    }
}

void set(void *p, size_t i, int type, double v) {
    switch (type) {
    case Uint8: ((uint8_t *)p)[i] = (uint8_t)v; break;
    case Int32: ((int32_t *)p)[i] = (int32_t)v; break;
    case Int64: ((int64_t *)p)[i] = (int64_t)v; break;
    case Float16: ((_Float16 *)p)[i] = (_Float16)v; break;
    case Float32: ((float *)p)[i] = (float)v; break;
    case Float64: ((double *)p)[i] = v; break;
    default: {
        float f = (float)v;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        // To the nearest, ties to even.
        ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    }
}

double reduced(const std::vector<Call> &calls, size_t i, int type, int op) {
    double v = get(calls[0].from, i, type);
    for (size_t rank = 1; rank < calls.size(); rank++) {
        double other = get(calls[rank].from, i, type);
        v = op == Max ? std::max(v, other) : v + other;
    }
    return op == Avg ? v / (double)calls.size() : v;
}

// The work of all ranks.
Code run(const std::vector<Call> &calls) {
    const Call &first = calls[0];
    size_t n = first.count, bytes = n * size_of(first.type);
    for (size_t rank = 0; rank < calls.size(); rank++) {
        const Call &call = calls[rank];
        switch (first.kind) {
        case Kind::AllReduce:
            for (size_t i = 0; i < n; i++) set(call.to, i, first.type, reduced(calls, i, first.type, first.number));
            break;
        case Kind::ReduceScatter:
            for (size_t i = 0; i < n; i++) set(call.to, i, first.type, reduced(calls, rank * n + i, first.type, first.number));
            break;
        case Kind::Broadcast: memcpy(call.to, calls[(size_t)first.number].from, bytes); break;
        case Kind::AllGather:
            for (size_t other = 0; other < calls.size(); other++) memcpy((char *)call.to + other * bytes, calls[other].from, bytes);
            break;
        case Kind::Messages:
            for (const Message &receive : call.receives)
                for (const Message &send : calls[(size_t)receive.peer].sends)
                    if (send.peer == (int)rank && send.bytes == receive.bytes) memcpy(receive.to, send.from, send.bytes);
        }
    }
    return Success;
}

// Waits for the calls of all ranks. The last one enqueues the operation.
int meet(Member &member, Call call) {
    Group &group = *member.group;
    std::unique_lock<std::mutex> guard(lock);
    if (group.is_aborted) return fail(InvalidUsage, "the communicator is aborted");
    create_event(&call.before);
    if (record(call.before, call.stream)) return fail(SystemError, "an event");
    unsigned long round = group.round;
    Handle stream = call.stream;
    group.calls[(size_t)member.rank] = std::move(call);
    if (++group.joined == group.size) {
        const Call &first = group.calls[0];
        group.code = Ok;
        for (const Call &c : group.calls) {
            bool is_same = c.kind == first.kind && c.count == first.count && c.type == first.type && c.number == first.number;
            if (!is_same) group.code = fail(InvalidArgument, "the ranks call different collectives");
        }
        for (const Call &c : group.calls) wait_for(group.stream, c.before);
        std::vector<Call> calls = group.calls;
        if (!group.code) enqueue(group.stream, [calls] { return run(calls); });
        create_event(&group.after);
        record(group.after, group.stream);
        group.joined = 0;
        group.round++;
        changed.notify_all();
    } else {
        changed.wait(guard, [&] { return group.round != round || group.is_aborted; });
        if (group.round == round) return fail(InvalidUsage, "the communicator is aborted");
    }
    wait_for(stream, group.after);
    return group.code;
}

int messages(Member &member, Call call) {
    call.kind = Kind::Messages;
    call.count = call.type = call.number = 0;
    return meet(member, std::move(call));
}

int post(Member *member, Handle stream, Message send, Message receive) {
    Call call{};
    call.stream = stream;
    if (send.from) call.sends.push_back(send);
    if (receive.to) call.receives.push_back(receive);
    if (!is_open) return messages(*member, call);
    opened.push_back({member, call});
    return Ok;
}

} // namespace

API int ncclGetVersion(int *version) { return *version = 22800, Ok; }
API const char *ncclGetErrorString(int code) { return code ? "an error of the emulator" : "no error"; }
API const char *ncclGetLastError(Handle) { return why.c_str(); }

API int ncclGetUniqueId(Identity *identity) {
    static int count;
    std::lock_guard<std::mutex> guard(lock);
    memset(identity, 0, sizeof *identity);
    snprintf(identity->bytes, sizeof identity->bytes, "group %d", ++count);
    return Ok;
}

API int ncclCommInitRank(Handle *made, int size, Identity identity, int rank) {
    std::unique_lock<std::mutex> guard(lock);
    auto &entry = groups[identity.bytes];
    if (!entry) entry = std::make_shared<Group>();
    std::shared_ptr<Group> group = entry;
    if (!group->stream) {
        create_stream(&group->stream, false);
        group->size = size;
        group->calls.resize((size_t)size);
    }
    *made = new Member{group, rank};
    if (++group->left == size) changed.notify_all();
    changed.wait(guard, [&] { return group->left == size; });
    return Ok;
}

API int ncclCommDestroy(Handle member) { return delete (Member *)member, Ok; }
API int ncclCommAbort(Handle member) {
    std::lock_guard<std::mutex> guard(lock);
    ((Member *)member)->group->is_aborted = true;
    changed.notify_all();
    return Ok;
}
API int ncclCommGetAsyncError(Handle member, int *code) {
    std::lock_guard<std::mutex> guard(lock);
    return *code = ((Member *)member)->group->is_aborted ? InvalidUsage : Ok, Ok;
}

API int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, Handle member, Handle stream) {
    return meet(*(Member *)member, {Kind::AllReduce, from, to, n, type, op, stream, nullptr, {}, {}});
}
API int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, Handle member, Handle stream) {
    return meet(*(Member *)member, {Kind::Broadcast, from, to, n, type, root, stream, nullptr, {}, {}});
}
API int ncclAllGather(const void *from, void *to, size_t n, int type, Handle member, Handle stream) {
    return meet(*(Member *)member, {Kind::AllGather, from, to, n, type, 0, stream, nullptr, {}, {}});
}
API int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, Handle member, Handle stream) {
    return meet(*(Member *)member, {Kind::ReduceScatter, from, to, n, type, op, stream, nullptr, {}, {}});
}
API int ncclSend(const void *from, size_t n, int type, int peer, Handle member, Handle stream) {
    return post((Member *)member, stream, {from, nullptr, n * size_of(type), peer}, {});
}
API int ncclRecv(void *to, size_t n, int type, int peer, Handle member, Handle stream) {
    return post((Member *)member, stream, {}, {nullptr, to, n * size_of(type), peer});
}
API int ncclGroupStart() { return is_open = true, Ok; }
API int ncclGroupEnd() {
    is_open = false;
    Call all{};
    Member *member = nullptr;
    for (auto &[of, call] : opened) {
        member = of;
        all.stream = call.stream;
        all.sends.insert(all.sends.end(), call.sends.begin(), call.sends.end());
        all.receives.insert(all.receives.end(), call.receives.begin(), call.receives.end());
    }
    opened.clear();
    return member ? messages(*member, all) : Ok;
}

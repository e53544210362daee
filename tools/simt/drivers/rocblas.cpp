// librocblas.so over the emulator's streams, as far as isograd calls it: one product in the order of its sums.
#include "driver.h"
#include <cstdio>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
using namespace driver;
using Status = int;
using Handle = void *;

constexpr Status NO_KERNEL = 2, BAD_POINTER = 5, BAD_SIZE = 4;
// Of types; the fourth is bf16.
constexpr int F16 = 150, F32 = 151, F64 = 152;
constexpr int TRANSPOSED = 112;

struct Blas {
    void *stream = nullptr;
};

static size_t width(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

static double load(const void *at, int type, long i) {
    const char *p = (const char *)at + i * (long)width(type);
    if (type == F64) return *(const double *)p;
    if (type == F32) return *(const float *)p;
    if (type == F16) return (double)*(const _Float16 *)p;
    unsigned bits = (unsigned)*(const unsigned short *)p << 16;
    float v;
    return memcpy(&v, &bits, 4), v;
}

// Rounded to f32 first, the precision of sums, unless they are of f64.
static void store(void *at, int type, long i, double value) {
    char *p = (char *)at + i * (long)width(type);
    float v = (float)value;
    if (type == F64) *(double *)p = value;
    else if (type == F32) *(float *)p = v;
    else if (type == F16) *(_Float16 *)p = (_Float16)v;
    else {
        unsigned bits;
        memcpy(&bits, &v, 4);
        *(unsigned short *)p = (unsigned short)(v != v ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

struct Matrices {
    void *at;
    int type, leading;
    long stride;
    bool is_transposed;
    long place(long batch, long row, long column) const {
        return batch * stride + (is_transposed ? row * leading + column : row + column * leading);
    }
    // Throws unless all of it is within an allocation.
    void check(long batches, long rows, long columns, bool writes) const {
        if (is_transposed) std::swap(rows, columns);
        size_t elements = (size_t)((batches - 1) * stride + (columns - 1) * leading + rows);
        simt::check_range(at, elements * width(type), writes);
    }
};

API Status rocblas_create_handle(Blas **made) { return *made = new Blas, 0; }
API Status rocblas_destroy_handle(Blas *blas) { return delete blas, 0; }
API Status rocblas_set_stream(Blas *blas, Handle stream) { return blas->stream = stream, 0; }
API Status rocblas_set_atomics_mode(Blas *, int mode) { return mode ? BAD_SIZE : 0; }
API Status rocblas_set_workspace(Blas *, void *at, size_t bytes) {
    return simt::allocation_of(at).at && simt::allocation_of((char *)at + bytes - 1).at ? 0 : BAD_POINTER;
}
API const char *rocblas_status_to_string(Status status) { return status ? "rocblas_status_error" : "rocblas_status_success"; }
API Status rocblas_get_version_string(char *to, size_t n) { return snprintf(to, n, "%s", "4.4.0.0-simt"), 0; }
API Status rocblas_gemm_strided_batched_ex(Blas *blas, int of_a, int of_b, int m, int n, int k, const void *alpha, void *a, int a_type,
                                           int lda, long stride_a, void *b, int b_type, int ldb, long stride_b, const void *beta, void *c,
                                           int c_type, int ldc, long stride_c, void *d, int d_type, int ldd, long stride_d, int batches,
                                           int compute, int, int, unsigned) {
    if (a_type != b_type || c_type != d_type || compute != (a_type == F64 ? F64 : F32)) return NO_KERNEL;
    Matrices A = {a, a_type, lda, stride_a, of_a == TRANSPOSED}, B = {b, b_type, ldb, stride_b, of_b == TRANSPOSED};
    Matrices C = {c, c_type, ldc, stride_c, false}, D = {d, d_type, ldd, stride_d, false};
    if (lda < (A.is_transposed ? k : m) || ldb < (B.is_transposed ? n : k) || ldc < m || ldd < m) return BAD_SIZE;
    double factor = load(alpha, compute, 0), of_c = load(beta, compute, 0);
    auto multiply = [=] {
        try {
            A.check(batches, m, k, false);
            B.check(batches, k, n, false);
            if (of_c != 0) C.check(batches, m, n, false);
            D.check(batches, m, n, true);
        } catch (const simt::Failure &why) {
            return fail_loudly(InvalidValue, "rocblas: " + why.text);
        }
        for (long batch = 0; batch < batches; batch++)
            for (long i = 0; i < m; i++)
                for (long j = 0; j < n; j++) {
                    double sum = 0;
                    for (long l = 0; l < k; l++) sum += load(a, a_type, A.place(batch, i, l)) * load(b, b_type, B.place(batch, l, j));
                    double added = of_c != 0 ? of_c * load(c, c_type, C.place(batch, i, j)) : 0;
                    store(d, d_type, D.place(batch, i, j), factor * sum + added);
                }
        return Success;
    };
    return enqueue(blas->stream, multiply) ? BAD_POINTER : 0;
}

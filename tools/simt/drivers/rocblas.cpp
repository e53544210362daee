// librocblas.so over the emulator's streams, as far as isograd calls it: one product in the order of its sums.
#include "driver.h"
#include "products.h"
#include <cstdio>

#define API extern "C" __attribute__((visibility("default")))
using namespace driver;
using namespace products;
using Status = int;
using Handle = void *;

constexpr Status NO_KERNEL = 2, BAD_POINTER = 5, BAD_SIZE = 4;
constexpr int TRANSPOSED = 112;

struct Blas {
    void *stream = nullptr;
};

// By its number; false of what is no type of ours.
static bool type_of(int number, Type *type) {
    switch (number) {
    case 150: return *type = Type::F16, true;
    case 151: return *type = Type::F32, true;
    case 152: return *type = Type::F64, true;
    case 168: return *type = Type::BF16, true;
    }
    return false;
}

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
    Type type, result, sums;
    if (!type_of(a_type, &type) || !type_of(c_type, &result) || !type_of(compute, &sums)) return NO_KERNEL;
    if (a_type != b_type || c_type != d_type || sums != (type == Type::F64 ? Type::F64 : Type::F32)) return NO_KERNEL;
    Matrices A = {a, type, lda, stride_a, of_a == TRANSPOSED}, B = {b, type, ldb, stride_b, of_b == TRANSPOSED};
    Matrices C = {c, result, ldc, stride_c, false}, D = {d, result, ldd, stride_d, false};
    if (lda < (A.is_transposed ? k : m) || ldb < (B.is_transposed ? n : k) || ldc < m || ldd < m) return BAD_SIZE;
    double factor = load(alpha, sums, 0), of_c = load(beta, sums, 0);
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
                    for (long l = 0; l < k; l++) sum += A.load(batch, i, l) * B.load(batch, l, j);
                    D.store(batch, i, j, factor * sum + (of_c != 0 ? of_c * C.load(batch, i, j) : 0));
                }
        return Success;
    };
    return enqueue(blas->stream, multiply) ? BAD_POINTER : 0;
}

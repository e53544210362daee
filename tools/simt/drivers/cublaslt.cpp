// libcublasLt.so over the emulator's streams, as far as isograd calls it: one product in the order of its sums, with what its
// documentation says of epilogues.
#include "driver.h"
#include "products.h"
#include <cmath>

#define API extern "C" __attribute__((visibility("default")))
using namespace driver;
using namespace products;
using Status = unsigned;

constexpr Status NO_POINTER = 7, NO_KERNEL = 15, FAILED = 13;
constexpr int COMPUTE_F32 = 68, COMPUTE_F64 = 70, COMPUTE_TF32 = 77;
// Bits of an epilogue.
constexpr unsigned IDENTITY = 1, BIAS = 4, GELU = 32, AUX = 128, SUMS_OF_A = 256, SUMS_OF_B = 512;
constexpr unsigned MASKED = 136, GELU_GRADIENT = 192;
constexpr size_t ALIGNMENT = 16;

struct Description {
    int compute, scale, of_a = 0, of_b = 0;
    unsigned epilogue = IDENTITY;
    char *bias = nullptr, *aux = nullptr;
    long aux_leading = 0;
};

struct Layout {
    Type type;
    long rows, columns, leading;
    int batches = 1;
    long stride = 0;
};

struct Preference {
    unsigned reductions = ~0u, alignments[4] = {256, 256, 256, 256};
    size_t workspace = 0;
};

struct Algorithm {
    unsigned long data[8];
};

struct Found {
    Algorithm algorithm;
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
};

static bool type_of(int number, Type *type) {
    switch (number) {
    case 0: return *type = Type::F32, true;
    case 1: return *type = Type::F64, true;
    case 2: return *type = Type::F16, true;
    case 14: return *type = Type::BF16, true;
    }
    return false;
}

// An attribute, whose size must be that of its type.
template <class T> static Status set(T &attribute, const void *value, size_t bytes) {
    if (bytes != sizeof(T)) return NO_POINTER;
    return memcpy(&attribute, value, bytes), 0;
}

static double rounded_to_tf32(double v) {
    float f = (float)v;
    unsigned bits;
    memcpy(&bits, &f, 4);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&f, &bits, 4);
    return std::isfinite(v) ? f : v;
}

static double gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static double gelu_gradient(double x) {
    double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static long rows_of(const Layout &x, int is_transposed) { return is_transposed ? x.columns : x.rows; }
static long columns_of(const Layout &x, int is_transposed) { return is_transposed ? x.rows : x.columns; }

// What no kernel multiplies, or not so.
static bool is_known(const Description &o, const Layout &a, const Layout &b, const Layout &c, const Layout &d) {
    long m = d.rows, n = d.columns, k = columns_of(a, o.of_a);
    if (rows_of(a, o.of_a) != m || rows_of(b, o.of_b) != k || columns_of(b, o.of_b) != n || c.rows != m || c.columns != n) return false;
    if (a.type != b.type || c.type != d.type || (o.compute == COMPUTE_F64) != (a.type == Type::F64)) return false;
    if (o.compute == COMPUTE_TF32 && a.type != Type::F32) return false;
    for (const Layout *x : {&a, &b, &c, &d})
        if (x->leading < x->rows || x->batches != d.batches) return false;
    switch (o.epilogue) {
    case IDENTITY: case BIAS: case GELU: case GELU | BIAS: case SUMS_OF_A: case SUMS_OF_B: break;
    case GELU | AUX: case GELU | AUX | BIAS: case GELU_GRADIENT:
        if (!o.aux || o.aux_leading < m || o.aux_leading % 8) return false;
        break;
    case MASKED:
        if (!o.aux || o.aux_leading < m || o.aux_leading % 128) return false;
        break;
    default: return false;
    }
    if (o.epilogue & (BIAS | SUMS_OF_A | SUMS_OF_B) && !o.bias) return false;
    // Of f64 the library ends products with a bias at most.
    if (a.type == Type::F64 && o.epilogue != IDENTITY && o.epilogue != BIAS) return false;
    return d.batches == 1 || o.epilogue == IDENTITY;
}

API size_t cublasLtGetVersion() { return 130100; }
API const char *cublasLtGetStatusName(Status status) { return status ? "CUBLAS_STATUS_ERROR" : "CUBLAS_STATUS_SUCCESS"; }
API Status cublasLtCreate(void **made) { return *made = new char, 0; }
API Status cublasLtDestroy(char *made) { return delete made, 0; }

API Status cublasLtMatmulDescCreate(Description **made, int compute, int scale) {
    *made = new Description{};
    (*made)->compute = compute, (*made)->scale = scale;
    return compute == COMPUTE_F32 || compute == COMPUTE_F64 || compute == COMPUTE_TF32 ? 0 : NO_KERNEL;
}
API Status cublasLtMatmulDescDestroy(Description *made) { return delete made, 0; }
API Status cublasLtMatmulDescSetAttribute(Description *o, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
    case 3: return set(o->of_a, value, bytes);
    case 4: return set(o->of_b, value, bytes);
    case 7: return set(o->epilogue, value, bytes);
    case 8: return set(o->bias, value, bytes);
    case 11: return set(o->aux, value, bytes);
    case 12: return set(o->aux_leading, value, bytes);
    }
    return NO_POINTER;
}

API Status cublasLtMatrixLayoutCreate(Layout **made, int type, unsigned long rows, unsigned long columns, long leading) {
    *made = new Layout{Type::F32, (long)rows, (long)columns, leading};
    return type_of(type, &(*made)->type) ? 0 : NO_KERNEL;
}
API Status cublasLtMatrixLayoutDestroy(Layout *made) { return delete made, 0; }
API Status cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
    case 5: return set(layout->batches, value, bytes);
    case 6: return set(layout->stride, value, bytes);
    }
    return NO_POINTER;
}

API Status cublasLtMatmulPreferenceCreate(Preference **made) { return *made = new Preference, 0; }
API Status cublasLtMatmulPreferenceDestroy(Preference *made) { return delete made, 0; }
API Status cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
    case 1: return set(preference->workspace, value, bytes);
    case 3: return set(preference->reductions, value, bytes);
    case 5: case 6: case 7: case 8: return set(preference->alignments[attribute - 5], value, bytes);
    }
    return NO_POINTER;
}

// The algorithm is for this epilogue alone.
API Status cublasLtMatmulAlgoGetHeuristic(void *, Description *o, Layout *a, Layout *b, Layout *c, Layout *d, Preference *, int asked,
                                          Found *found, int *count) {
    if (*count = 0, asked < 1) return NO_POINTER;
    if (!is_known(*o, *a, *b, *c, *d)) return NO_KERNEL;
    *found = Found{};
    found->algorithm.data[0] = o->epilogue;
    return *count = 1, 0;
}

API Status cublasLtMatmul(void *, const Description *operation, const void *alpha, void *a, const Layout *of_a, void *b, const Layout *of_b,
                          const void *beta, void *c, const Layout *of_c, void *d, const Layout *of_d, const Algorithm *algorithm,
                          void *workspace, size_t bytes, void *stream) {
    Description o = *operation;
    if (!is_known(o, *of_a, *of_b, *of_c, *of_d) || algorithm->data[0] != o.epilogue) return NO_KERNEL;
    if ((size_t)o.bias % ALIGNMENT || (size_t)o.aux % ALIGNMENT) return NO_POINTER;
    Type scale;
    if (!type_of(o.scale, &scale)) return NO_KERNEL;
    auto matrices = [](void *at, const Layout *of, int is_transposed) {
        return Matrices{at, of->type, of->leading, of->stride, is_transposed != 0};
    };
    Matrices A = matrices(a, of_a, o.of_a), B = matrices(b, of_b, o.of_b), C = matrices(c, of_c, 0), D = matrices(d, of_d, 0);
    double factor = products::load(alpha, scale, 0), added = products::load(beta, scale, 0);
    long m = of_d->rows, n = of_d->columns, k = columns_of(*of_a, o.of_a);
    int batches = of_d->batches;
    bool has_bias = o.epilogue & BIAS, has_gelu = o.epilogue & GELU;
    long summed = o.epilogue == SUMS_OF_A ? m : o.epilogue == SUMS_OF_B ? n : 0;
    auto multiply = [=] {
        Matrices beside = {o.aux, D.type, o.aux_leading, 0, false}, vector = {o.bias, D.type, m, 0, false};
        try {
            A.check(batches, m, k, false);
            B.check(batches, k, n, false);
            if (added != 0) C.check(batches, m, n, false);
            D.check(batches, m, n, true);
            if (has_bias) vector.check(1, m, 1, false);
            if (summed) vector.check(1, summed, 1, true);
            if (o.epilogue == MASKED) simt::check_range(o.aux, (size_t)((n - 1) * o.aux_leading + m + 7) / 8, false);
            else if (o.epilogue & AUX) beside.check(1, m, n, has_gelu);
            if (bytes) simt::check_range(workspace, bytes, true);
        } catch (const simt::Failure &why) {
            return fail_loudly(InvalidValue, "cublasLt: " + why.text);
        }
        auto read = [&](double v) { return o.compute == COMPUTE_TF32 ? rounded_to_tf32(v) : v; };
        for (long batch = 0; batch < batches; batch++)
            for (long i = 0; i < m; i++)
                for (long j = 0; j < n; j++) {
                    double v = 0;
                    for (long l = 0; l < k; l++) v += read(A.load(batch, i, l)) * read(B.load(batch, l, j));
                    v = factor * v + (added != 0 ? added * C.load(batch, i, j) : 0) + (has_bias ? vector.load(0, i, 0) : 0);
                    if (has_gelu && o.epilogue & AUX) beside.store(0, i, j, v);
                    if (has_gelu) v = gelu(v);
                    if (o.epilogue == GELU_GRADIENT) v *= gelu_gradient(beside.load(0, i, j));
                    long bit = j * o.aux_leading + i;
                    if (o.epilogue == MASKED && !(o.aux[bit / 8] >> bit % 8 & 1)) v = 0;
                    D.store(batch, i, j, v);
                }
        for (long i = 0; i < summed; i++) {
            double sum = 0;
            for (long l = 0; l < k; l++) sum += o.epilogue == SUMS_OF_A ? A.load(0, i, l) : B.load(0, l, i);
            vector.store(0, i, 0, sum);
        }
        return Success;
    };
    return enqueue(stream, multiply) ? FAILED : 0;
}

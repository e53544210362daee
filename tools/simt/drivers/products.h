// Matrices of the vendors' libraries of products, which are column-major.
#pragma once
#include "../runtime/runtime.h"
#include <cstring>

namespace products {

enum class Type { F16, BF16, F32, F64 };

inline size_t width(Type type) { return type == Type::F64 ? 8 : type == Type::F32 ? 4 : 2; }

inline double load(const void *at, Type type, long i) {
    const char *p = (const char *)at + i * (long)width(type);
    if (type == Type::F64) return *(const double *)p;
    if (type == Type::F32) return *(const float *)p;
    if (type == Type::F16) return (double)*(const _Float16 *)p;
    unsigned bits = (unsigned)*(const unsigned short *)p << 16;
    float v;
    return memcpy(&v, &bits, 4), v;
}

// Rounded to f32 first, the precision of sums, unless they are of f64.
inline void store(void *at, Type type, long i, double value) {
    char *p = (char *)at + i * (long)width(type);
    float v = (float)value;
    if (type == Type::F64) *(double *)p = value;
    else if (type == Type::F32) *(float *)p = v;
    else if (type == Type::F16) *(_Float16 *)p = (_Float16)v;
    else {
        unsigned bits;
        memcpy(&bits, &v, 4);
        *(unsigned short *)p = (unsigned short)(v != v ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

struct Matrices {
    void *at;
    Type type;
    long leading, stride;
    bool is_transposed;
    double load(long batch, long row, long column) const { return products::load(at, type, place(batch, row, column)); }
    void store(long batch, long row, long column, double value) const {
        products::store(at, type, place(batch, row, column), value);
    }
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

} // namespace products

// The instructions of matrix units. A prelude of CUDA calls these functions in place of mma.sync, ldmatrix and cp.async of compute
// capability 8.0; of HIP, they are the compiler's builtins.
//
// Another instruction is another `run`: it sees the operands of all lanes, and a lane that does not come is an error.
#pragma once

struct simt_mma_operands {
    unsigned a[4], b[2];
    float c[4];
};

// D[16, 8] = A[16, 16] B[16, 8] + C in f32. Lane 4 g + t holds rows g and g + 8 of A and C, column g of B (PTX ISA, "Matrix
// Fragments for mma.m16n8k16").
template <float (*value)(unsigned short)> SIMT_HELPER void simt_run_mma(simt_request *const *lanes, unsigned) {
    float A[16][16], B[16][8], C[16][8];
    for (int l = 0; l < 32; l++) {
        if (!lanes[l]) simt_fail("mma.sync: lane %d takes no part, the whole wave must", l);
        auto *q = (const simt_mma_operands *)lanes[l]->in;
        int g = l / 4, t = l % 4;
        for (int h = 0; h < 2; h++) {
            for (int r = 0; r < 4; r++)
                A[g + 8 * (r & 1)][2 * t + h + 8 * (r >> 1)] = value((unsigned short)(q->a[r] >> 16 * h));
            for (int r = 0; r < 2; r++) B[2 * t + h + 8 * r][g] = value((unsigned short)(q->b[r] >> 16 * h));
            C[g][2 * t + h] = q->c[h];
            C[g + 8][2 * t + h] = q->c[2 + h];
        }
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 16; k++) C[i][j] += A[i][k] * B[k][j];
    for (int l = 0; l < 32; l++) {
        auto *d = (float *)lanes[l]->out;
        int g = l / 4, t = l % 4;
        for (int h = 0; h < 2; h++) {
            d[h] = C[g][2 * t + h];
            d[2 + h] = C[g + 8][2 * t + h];
        }
    }
}

template <float (*value)(unsigned short)>
SIMT_CONVERGENT SIMT_HELPER void simt_mma(float *d, const unsigned *a, const unsigned *b) {
    simt_mma_operands in = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
    simt_request r = {"mma.sync", 0, ~0ull, &in, d, sizeof in, 0, 0, 32, simt_run_mma<value>, SIMT_SITE};
    SIMT_CALL simt_together(&r);
}
// mma.sync.aligned.m16n8k16.row.col.f32.{bf16,f16}.{bf16,f16}.f32 with d as C and D.
#define simt_mma_bf16(d, a, b) simt_mma<simt_bf16_to_f32>(d, a, b)
#define simt_mma_f16(d, a, b) simt_mma<simt_f16_to_f32>(d, a, b)

// cvt.rna.tf32.f32: to 11 significant bits, halves away from 0.
SIMT_HELPER unsigned simt_f32_to_tf32(float v) {
    unsigned bits;
    __builtin_memcpy(&bits, &v, 4);
    if ((bits & 0x7fffffff) < 0x7f800000) bits += 0x1000;
    return bits & 0xffffe000;
}

// D[16, 8] = A[16, 8] B[8, 8] + C of TF32, whose lower bits are ignored. Lane 4 g + t holds rows g and g + 8 of A and C and columns t and
// t + 4 of A, column g of B (PTX ISA, "Matrix Fragments for mma.m16n8k8").
SIMT_HELPER void simt_run_mma_tf32(simt_request *const *lanes, unsigned) {
    float A[16][8], B[8][8], C[16][8];
    auto number = [](unsigned bits) {
        float v;
        bits &= 0xffffe000;
        __builtin_memcpy(&v, &bits, 4);
        return v;
    };
    for (int l = 0; l < 32; l++) {
        if (!lanes[l]) simt_fail("mma.sync: lane %d takes no part, the whole wave must", l);
        auto *q = (const simt_mma_operands *)lanes[l]->in;
        int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++) A[g + 8 * (r & 1)][t + 4 * (r >> 1)] = number(q->a[r]);
        for (int r = 0; r < 2; r++) B[t + 4 * r][g] = number(q->b[r]);
        for (int h = 0; h < 2; h++) C[g][2 * t + h] = q->c[h], C[g + 8][2 * t + h] = q->c[2 + h];
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 8; k++) C[i][j] += A[i][k] * B[k][j];
    for (int l = 0; l < 32; l++) {
        auto *d = (float *)lanes[l]->out;
        int g = l / 4, t = l % 4;
        for (int h = 0; h < 2; h++) d[h] = C[g][2 * t + h], d[2 + h] = C[g + 8][2 * t + h];
    }
}

SIMT_CONVERGENT SIMT_HELPER void simt_mma_tf32(float *d, const unsigned *a, const unsigned *b) {
    simt_mma_operands in = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
    simt_request r = {"mma.sync", 0, ~0ull, &in, d, sizeof in, 0, 0, 32, simt_run_mma_tf32, SIMT_SITE};
    SIMT_CALL simt_together(&r);
}

// Matrix i of 8x8 halves has the addresses of its rows in lanes 8 i to 8 i + 7; lane l gets a pair of row l / 4, or
// transposed of column l / 4.
SIMT_HELPER void simt_run_ldmatrix(simt_request *const *lanes, unsigned) {
    for (int l = 0; l < 32; l++)
        if (!lanes[l]) simt_fail("ldmatrix: lane %d takes no part, the whole wave must", l);
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < lanes[l]->how; i++)
            for (int h = 0; h < 2; h++) {
                int row = l / 4, column = l % 4 * 2 + h;
                if (lanes[l]->argument) row = l % 4 * 2 + h, column = l / 4;
                auto *from = (const unsigned short *)lanes[8 * i + row]->in;
                ((unsigned short *)lanes[l]->out)[2 * i + h] = from[column];
            }
}

template <int MATRICES, bool TRANSPOSED>
SIMT_CONVERGENT SIMT_HELPER void simt_ldmatrix(unsigned *to, const void *row) {
    if ((int)simt_self.lane < 8 * MATRICES) {
#if SIMT_CHECKED
        // Pipelines read a tile too many, which they do not multiply.
        simt_access(row, 16, SIMT_PEEK, __builtin_return_address(0));
#endif
        if ((uintptr_t)row % 16) simt_fail("ldmatrix: the address of a row, %p, is no multiple of 16", row);
    }
    simt_request r = {"ldmatrix", 0, ~0ull, row, to, 4, MATRICES, TRANSPOSED, 32, simt_run_ldmatrix, SIMT_SITE};
    SIMT_CALL simt_together(&r);
}

// cp.async: the bytes arrive at the wait, and no sooner; until then the target holds NaN.
struct simt_copy {
    void *to;
    const void *from;
    unsigned bytes, filled, group;
};
#define SIMT_COPIES 128
struct simt_copies {
    simt_copy in_flight[SIMT_COPIES];
    unsigned n, group;
};

SIMT_HELPER simt_copies *simt_own_copies() {
    if (!simt_self.copies) simt_self.copies = __builtin_calloc(1024, sizeof(simt_copies));
    uint3 t = simt_self.thread, extent = simt_self.block_extent;
    return (simt_copies *)simt_self.copies + ((t.z * extent.y + t.y) * extent.x + t.x);
}

// Copies `bytes` (4, 8 or 16), of which the first `filled` are read and the others become 0.
SIMT_HELPER void simt_cp_async(void *to, const void *from, unsigned bytes, unsigned filled) {
    simt_copies *own = simt_own_copies();
#if SIMT_CHECKED
    if (filled) simt_access(from, filled, SIMT_READ, __builtin_return_address(0));
    simt_access(to, bytes, SIMT_WRITE, __builtin_return_address(0));
#endif
    if (((uintptr_t)to | (uintptr_t)from) % bytes) simt_fail("cp.async: an address is no multiple of %u", bytes);
    if (own->n == SIMT_COPIES) simt_fail("cp.async: more than %d copies of one thread are in flight", SIMT_COPIES);
    memset(to, 0xff, bytes);
    own->in_flight[own->n++] = {to, from, bytes, filled, own->group};
}
SIMT_HELPER void simt_cp_async_commit() { simt_own_copies()->group++; }
// Until at most `pending` of the committed groups are in flight.
SIMT_HELPER void simt_cp_async_wait(unsigned pending) {
    simt_copies *own = simt_own_copies();
    unsigned kept = 0;
    for (unsigned i = 0; i < own->n; i++) {
        simt_copy c = own->in_flight[i];
        if (own->group - c.group <= pending) {
            own->in_flight[kept++] = c;
            continue;
        }
        memset(c.to, 0, c.bytes);
        memcpy(c.to, c.from, c.filled);
    }
    own->n = kept;
}

#if SIMT_HIP

// D[16, 16] = A[16, 16] B[16, 16] + C in f32: which element a lane has at a place. A's row and B's column are the lane modulo 16,
// and so is the column of C and D. From AMD's documents: "MI200 Instruction Set Architecture" and "MI300 ISA", matrix arithmetic
// instructions; "RDNA3 ISA" and "RDNA4 ISA", wave matrix multiply accumulate; and the matrix instruction calculator of the ROCm
// project, which prints them.
struct simt_mfma {
    enum { wave = 64, operands = 4, results = 4 };
    static int k(int lane, int place) { return 4 * (lane / 16) + place; }
    static int row(int lane, int place) { return 4 * (lane / 16) + place; }
};
// Both halves of the wave have the same operands.
struct simt_wmma_gfx11 {
    enum { wave = 32, operands = 16, results = 8 };
    static int k(int, int place) { return place; }
    static int row(int lane, int place) { return 2 * place + lane / 16; }
};
struct simt_wmma_gfx12 {
    enum { wave = 32, operands = 8, results = 8 };
    static int k(int lane, int place) { return 8 * (lane / 16) + place; }
    static int row(int lane, int place) { return 8 * (lane / 16) + place; }
};

template <class Layout> struct simt_block_operands {
    unsigned short a[Layout::operands], b[Layout::operands];
    float c[Layout::results];
};

template <class Layout, float (*value)(unsigned short)> SIMT_HELPER void simt_run_block(simt_request *const *lanes, unsigned wave) {
    const char *name = nullptr;
    for (unsigned l = 0; l < wave; l++)
        if (lanes[l]) name = lanes[l]->name;
    if (wave != Layout::wave) simt_fail("%s: the wave has %u lanes, the instruction is for %d", name, wave, Layout::wave);
    // As bits, with the 16 columns of K.
    int A[16][16], B[16][16];
    float D[16][16];
    memset(A, -1, sizeof A);
    memset(B, -1, sizeof B);
    for (int l = 0; l < Layout::wave; l++) {
        if (!lanes[l]) simt_fail("%s: lane %d takes no part, the whole wave must", name, l);
        auto *q = (const simt_block_operands<Layout> *)lanes[l]->in;
        for (int i = 0; i < Layout::operands; i++) {
            int &a = A[l % 16][Layout::k(l, i)], &b = B[l % 16][Layout::k(l, i)];
            if ((a >= 0 && a != q->a[i]) || (b >= 0 && b != q->b[i]))
                simt_fail("%s: lanes %d and %d have other operands, which must be the same", name, l % 16, l);
            a = q->a[i], b = q->b[i];
        }
        for (int i = 0; i < Layout::results; i++) D[Layout::row(l, i)][l % 16] = q->c[i];
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            for (int k = 0; k < 16; k++) D[i][j] += value((unsigned short)A[i][k]) * value((unsigned short)B[j][k]);
    for (int l = 0; l < Layout::wave; l++)
        for (int i = 0; i < Layout::results; i++) ((float *)lanes[l]->out)[i] = D[Layout::row(l, i)][l % 16];
}

template <class Layout> struct simt_of_block {
    typedef short operand __attribute__((ext_vector_type(Layout::operands)));
    typedef float sums __attribute__((ext_vector_type(Layout::results)));
};

template <class Layout, float (*value)(unsigned short)>
SIMT_CONVERGENT SIMT_HELPER typename simt_of_block<Layout>::sums
simt_multiply(const char *name, typename simt_of_block<Layout>::operand a, typename simt_of_block<Layout>::operand b,
              typename simt_of_block<Layout>::sums c) {
    simt_block_operands<Layout> in;
    memcpy(in.a, &a, sizeof in.a);
    memcpy(in.b, &b, sizeof in.b);
    memcpy(in.c, &c, sizeof in.c);
    typename simt_of_block<Layout>::sums d;
    simt_request r = {name, 0, ~0ull, &in, &d, sizeof in, 0, 0, Layout::wave, simt_run_block<Layout, value>, SIMT_SITE};
    SIMT_CALL simt_together(&r);
    return d;
}
// The last three numbers of an MFMA are for more than one block.
#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, ...) simt_multiply<simt_mfma, simt_f16_to_f32>("mfma_f32_16x16x16f16", a, b, c)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, ...) \
    simt_multiply<simt_mfma, simt_bf16_to_f32>("mfma_f32_16x16x16bf16_1k", a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c) \
    simt_multiply<simt_wmma_gfx11, simt_f16_to_f32>("wmma_f32_16x16x16_f16_w32", a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c) \
    simt_multiply<simt_wmma_gfx11, simt_bf16_to_f32>("wmma_f32_16x16x16_bf16_w32", a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c) \
    simt_multiply<simt_wmma_gfx12, simt_f16_to_f32>("wmma_f32_16x16x16_f16_w32_gfx12", a, b, c)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c) \
    simt_multiply<simt_wmma_gfx12, simt_bf16_to_f32>("wmma_f32_16x16x16_bf16_w32_gfx12", a, b, c)

#endif

// d [16, 16] = a [16, 16] b [16, 16] in f32 by one instruction, or what the architecture has for it; a and b are f16, or bf16 with
// BF16. The layouts are those of AMD's documents, as ../../device/matrix.h names them.
typedef short part4 __attribute__((ext_vector_type(4)));
typedef short part8 __attribute__((ext_vector_type(8)));
typedef short part16 __attribute__((ext_vector_type(16)));
typedef float sums4 __attribute__((ext_vector_type(4)));
typedef float sums8 __attribute__((ext_vector_type(8)));

#ifdef BF16
#define MFMA __builtin_amdgcn_mfma_f32_16x16x16bf16_1k
#define WMMA11 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32
#define WMMA12 __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12
#else
#define MFMA __builtin_amdgcn_mfma_f32_16x16x16f16
#define WMMA11 __builtin_amdgcn_wmma_f32_16x16x16_f16_w32
#define WMMA12 __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12
#endif

extern "C" __global__ void block(const short *a, const short *b, float *d) {
    int lane = threadIdx.x, i = lane % 16, part = lane / 16;
#if defined(__GFX9__)
    part4 x, y;
    for (int k = 0; k < 4; k++) x[k] = a[i * 16 + 4 * part + k], y[k] = b[(4 * part + k) * 16 + i];
    sums4 sums = MFMA(x, y, (sums4)(0), 0, 0, 0);
    for (int r = 0; r < 4; r++) d[(4 * part + r) * 16 + i] = sums[r];
#elif defined(__GFX11__)
    part16 x, y;
    for (int k = 0; k < 16; k++) x[k] = a[i * 16 + k], y[k] = b[k * 16 + i];
#ifdef HALVES_DIFFER
    x[3] += part;
#endif
    sums8 sums = WMMA11(x, y, (sums8)(0));
    for (int r = 0; r < 8; r++) d[(2 * r + part) * 16 + i] = sums[r];
#else
    part8 x, y;
    for (int k = 0; k < 8; k++) x[k] = a[i * 16 + 8 * part + k], y[k] = b[(8 * part + k) * 16 + i];
    sums8 sums = WMMA12(x, y, (sums8)(0));
    for (int r = 0; r < 8; r++) d[(8 * part + r) * 16 + i] = sums[r];
#endif
}

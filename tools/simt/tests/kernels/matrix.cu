// c [M, N] = a [M, K] b [N, K]^T in bf16 on matrix units. 128 threads make 32 x 32 results; M, N and K are multiples of 32.
#include "prelude.h"

typedef unsigned short bf16;
// How many groups of copies may be in flight when the tile is read: 1 is right.
#ifndef PENDING
#define PENDING 1
#endif

extern "C" __global__ void __launch_bounds__(128) product(const bf16 *a, const bf16 *b, float *c, int M, int N, int K) {
    // Rows of 80 bytes.
    __shared__ __align__(16) bf16 tile_a[2][32][40], tile_b[2][32][40];
    int t = threadIdx.x, lane = t % 32, wave = t / 32, row0 = wave / 2 * 16, column0 = wave % 2 * 16;
    int r = t / 4, at = t % 4 * 8, m0 = blockIdx.y * 32, n0 = blockIdx.x * 32;
    float sums[2][4] = {};
    auto fetch = [&](int place, int k0) {
        simt_cp_async(&tile_a[place][r][at], a + (size_t)(m0 + r) * K + k0 + at, 16, 16);
        simt_cp_async(&tile_b[place][r][at], b + (size_t)(n0 + r) * K + k0 + at, 16, 16);
        simt_cp_async_commit();
    };
    fetch(0, 0);
    for (int k0 = 0, place = 0; k0 < K; k0 += 32, place ^= 1) {
        if (k0 + 32 < K) fetch(place ^ 1, k0 + 32);
        simt_cp_async_wait(k0 + 32 < K ? PENDING : 0);
        __syncthreads();
        for (int k = 0; k < 32; k += 16) {
            unsigned x[4], y[4];
            simt_ldmatrix<4, false>(x, &tile_a[place][row0 + lane % 16][k + lane / 16 * 8]);
            simt_ldmatrix<4, false>(y, &tile_b[place][column0 + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
            simt_mma_bf16(sums[0], x, y);
            simt_mma_bf16(sums[1], x, y + 2);
        }
        __syncthreads();
    }
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < 4; i++) {
            int m = m0 + row0 + lane / 4 + i / 2 * 8, n = n0 + column0 + j * 8 + lane % 4 * 2 + i % 2;
            c[(size_t)m * N + n] = sums[j][i];
        }
}

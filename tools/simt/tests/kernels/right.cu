// Kernels without a mistake: none of them may be reported, and all must be right.
#include "prelude.h"

// A block takes a row.
extern "C" __global__ void __launch_bounds__(256)
layer_norm(const float *x, const float *weight, const float *bias, float *y, int n, float eps) {
    __shared__ float part[32];
    const float *row = x + (size_t)blockIdx.x * n;
    float sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i];
    float mean = block_sum(sum, part) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
    float rstd = rsqrtf(block_sum(squares, part) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[(size_t)blockIdx.x * n + i] = (row[i] - mean) * rstd * __ldg(weight + i) + bias[i];
}

// A block takes a row, which it keeps in dynamic shared memory of n floats.
KERNEL(softmax)(const float *x, float *y, int n) {
    __shared__ float part[32];
    extern __shared__ __align__(16) float row[];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i] = __expf(x[(size_t)blockIdx.x * n + i]);
    sum = block_sum(sum, part);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[(size_t)blockIdx.x * n + i] = row[i] / sum;
}

// A wave takes a row: no barrier. Whole waves return early.
KERNEL(softmax_waves)(const float *x, float *y, int rows, int n) {
    int r = blockIdx.x * (blockDim.x / warpSize) + threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
    if (r >= rows) return;
    float sum = 0;
    for (int i = lane; i < n; i += warpSize) sum += expf(x[(size_t)r * n + i]);
    sum = wave_sum(sum);
    for (int i = lane; i < n; i += warpSize) y[(size_t)r * n + i] = expf(x[(size_t)r * n + i]) / sum;
}

template <int TILE> __device__ __forceinline__ void product(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE + 1];
    int y = threadIdx.y, x = threadIdx.x, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k0 = 0; k0 < k; k0 += TILE) {
        tile_a[y][x] = row < m && k0 + x < k ? a[(size_t)row * k + k0 + x] : 0;
        tile_b[y][x] = k0 + y < k && column < n ? b[(size_t)(k0 + y) * n + column] : 0;
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
// The compiler sees two kernels of one template, made by a macro.
#define PRODUCT(tile) \
    KERNEL(product##tile)(const float *a, const float *b, float *c, int m, int n, int k) { product<tile>(a, b, c, m, n, k); }
PRODUCT(16)
PRODUCT(8)

KERNEL(sum)(const float *x, float *y, int n) {
    __shared__ float part[32];
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
    v = block_sum(v, part);
    if (threadIdx.x == 0) atomicAdd(y, v);
}

// Thread 0 waits for thread 64 through atomics.
KERNEL(hand_over)(const float *x, float *y, int *flag) {
    if (threadIdx.x == 64) {
        y[1] = x[0];
        __threadfence_block();
        atomicExch(flag, 1);
    }
    if (threadIdx.x == 0) {
        while (atomicCAS(flag, 1, 1) != 1) {}
        y[0] = 1;
    }
}

struct Pair {
    int a;
    float4 v;
};
// Arguments of many sizes, by value.
KERNEL(by_value)(Pair p, float *y, unsigned char c, double d) { y[0] = p.v.w + p.a + c + (float)d; }

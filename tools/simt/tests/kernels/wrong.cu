// Kernels with one mistake each. Blocks have 128 threads where test.cpp says nothing else.
#include "prelude.h"

// No barrier between writing part[] and reading it.
KERNEL(missing_barrier)(const float *x, float *y, int n) {
    __shared__ float part[32];
    float v = wave_sum(threadIdx.x < n ? x[threadIdx.x] : 0);
    if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = v;
    float sum = 0;
    for (int i = 0; i < (int)(blockDim.x / warpSize); i++) sum += part[i];
    y[threadIdx.x] = sum;
}

// No barrier at the end of the loop: the next tile overwrites what others read.
KERNEL(write_after_read)(const float *a, float *c, int n) {
    __shared__ float tile[16][16];
    int y = threadIdx.y, x = threadIdx.x;
    float sum = 0;
    for (int k0 = 0; k0 < n; k0 += 16) {
        tile[y][x] = a[(blockIdx.y * 16 + y) * n + k0 + x];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += tile[k][x];
    }
    c[(blockIdx.y * 16 + y) * n + blockIdx.x * 16 + x] = sum;
}

// 32 lanes, whatever the wave: right with waves of 32, and a wrong result with 64.
KERNEL(lanes_of_32)(const float *x, float *y, int n) {
    __shared__ float part[32];
    float v = threadIdx.x < n ? x[threadIdx.x] : 0;
    for (int by = 16; by; by /= 2) v += wave_xor(v, by);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < (int)(blockDim.x / warpSize); i++) sum += part[i];
        y[0] = sum;
    }
}

// The last block writes behind the end.
KERNEL(no_tail_guard)(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i < n ? i : 0] + 1;
}

// The element behind a shared array, which another one follows.
KERNEL(behind_shared)(const float *x, float *y, int n) {
    __shared__ float s[128];
    __shared__ float t[128];
    t[threadIdx.x] = 1;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x + 1] + t[threadIdx.x];
}

// The same through a pointer, which has no extent.
__device__ __noinline__ float get(const float *p, int i) { return p[i]; }
KERNEL(behind_shared_pointer)(const float *x, float *y, int n) {
    __shared__ float s[128];
    __shared__ float t[128];
    t[threadIdx.x] = 1;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = get(s, threadIdx.x + 1) + t[threadIdx.x];
}

// The launch gives 4 bytes too few.
KERNEL(dynamic_too_small)(const float *x, float *y, int n) {
    extern __shared__ float d[];
    d[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = d[blockDim.x - 1 - threadIdx.x];
}

// Two barriers, of which each thread comes to one.
KERNEL(divergent_barrier)(const float *x, float *y, int n) {
    __shared__ float s[128];
    s[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 64) {
        __syncthreads();
        y[threadIdx.x] = s[127 - threadIdx.x];
    } else {
        s[threadIdx.x] += 1;
        __syncthreads();
        y[threadIdx.x] = s[127 - threadIdx.x];
    }
}

// Some threads return before the barrier.
KERNEL(early_return)(const float *x, float *y, int n) {
    __shared__ float s[128];
    if ((int)threadIdx.x >= n) return;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[n - 1 - threadIdx.x];
}

// Lanes have returned that others read.
KERNEL(shuffle_after_return)(const float *x, float *y, int n) {
    if ((int)threadIdx.x >= n) return;
    float v = wave_sum(x[threadIdx.x]);
    if (threadIdx.x == 0) y[0] = v;
}

// Every other lane is in another branch.
KERNEL(divergent_shuffle)(const float *x, float *y, int n) {
    float v = x[threadIdx.x];
    if (threadIdx.x & 1) v += wave_xor(v, 2);
    else v += wave_xor(v, 1);
    y[threadIdx.x] = v;
}

// As if the lanes of a wave wrote and read in step.
KERNEL(wave_in_step)(const float *x, float *y, int n) {
    __shared__ float s[128];
    int t = threadIdx.x, lane = t % warpSize;
    s[t] = x[t];
    __syncwarp();
    if (lane < 8) s[t] += s[t + 8];
    if (lane < 4) s[t] += s[t + 4];
    __syncwarp();
    y[t] = s[t];
}

// The last elements of s are read, but written by nobody.
KERNEL(unwritten_shared)(const float *x, float *y, int n) {
    __shared__ float s[128];
    if ((int)threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 128; i++) sum += s[i];
    y[threadIdx.x] = sum;
}

// Blocks add to one place without an atomic.
KERNEL(race_of_blocks)(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i % 128] += x[i];
}

// Two threads write one element.
KERNEL(double_write)(const float *x, float *y, int n) { y[threadIdx.x / 2] = x[threadIdx.x]; }

// A block of 96 has half a wave of 64, whose lanes read lanes that are not there.
KERNEL(partial_wave)(const float *x, float *y, int n) {
    float v = wave_sum(x[threadIdx.x]);
    if (threadIdx.x % warpSize == 0) atomicAdd(y, v);
}

// An index of 4 in a local array of 4.
KERNEL(behind_local)(const float *x, float *y, int n) {
    float sums[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; i++) sums[i % 5] += x[i];
    y[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

// One thread writes, and all read without a barrier.
KERNEL(unordered_flag)(const float *x, float *y, int n) {
    __shared__ float mean;
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < n; i++) sum += x[i];
        mean = sum / n;
    }
    y[threadIdx.x] = x[threadIdx.x] - mean;
}

// A barrier in a loop that some threads leave sooner.
KERNEL(barrier_in_loop)(const float *x, float *y, int n) {
    __shared__ float s[128];
    for (int i = 0; i < (threadIdx.x < 100 ? 3 : 2); i++) {
        s[threadIdx.x] = x[threadIdx.x] + i;
        __syncthreads();
    }
    y[threadIdx.x] = s[threadIdx.x];
}

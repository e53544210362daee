// What differs between CUDA and HIP, for the test kernels.
#pragma once

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

#if defined(__HIP_PLATFORM_AMD__)
#define wave_xor(v, by) __shfl_xor(v, by)
#else
#define wave_xor(v, by) __shfl_xor_sync(0xffffffffu, v, by)
#endif
#define KERNEL(name) extern "C" __global__ void name

__device__ __forceinline__ float wave_sum(float v) {
    for (int by = warpSize / 2; by; by /= 2) v += wave_xor(v, by);
    return v;
}

// The sum over a block; every thread gets it. `part` has an element for each wave.
__device__ __forceinline__ float block_sum(float v, float *part) {
    v = wave_sum(v);
    // It may still be read from the last call.
    __syncthreads();
    if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = v;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < (int)((blockDim.x + warpSize - 1) / warpSize); i++) sum += part[i];
    return sum;
}

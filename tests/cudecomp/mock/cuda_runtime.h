// A mock of the few CUDA runtime functions that our kernels use, for a machine without GPUs. "Device" memory is host
// memory.

#pragma once

typedef int cudaError_t;
typedef struct CUstream_st* cudaStream_t;
enum { cudaSuccess = 0 };

static inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
static inline cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

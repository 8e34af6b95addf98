// The functions that Python calls through ctypes (decompops/_backend/cudecomp/grids.py). All functions except those that
// return names return a number. -1 stands for an error, whose text `decompops_cudecomp_error` returns.

#pragma once

#include <cstdint>

#define DECOMPOPS_EXPORT extern "C" __attribute__((visibility("default")))

DECOMPOPS_EXPORT const char* decompops_cudecomp_error();
DECOMPOPS_EXPORT const char* decompops_cudecomp_platform();
DECOMPOPS_EXPORT void* decompops_cudecomp_transpose();
DECOMPOPS_EXPORT void* decompops_cudecomp_halo();
// Chooses the GPU of this process. A negative number chooses GPU `-device - 1`, modulo the number of GPUs.
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_use_device(int device);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_add_handle(int communicator);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_add_grid(std::int64_t handle, const std::int32_t* division,
                                                          std::int64_t count);
// Lets cuDecomp choose: writes the two parts of the process grid and the number of the backend.
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_choose(std::int64_t handle, const std::int32_t* search,
                                                        std::int64_t count, std::int32_t* choice);
// Whether MPI reports that it is CUDA-aware.
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_mpi_knows_gpus();
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_elements(std::int64_t grid, std::int64_t width);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_reserve(std::int64_t grid, std::int64_t bytes);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_clear();

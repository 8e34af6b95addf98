// What Python calls through ctypes (decompops/_backend/grids.py). All but the names return a number, or -1 for an error whose
// text `decompops_cudecomp_error` returns.

#pragma once

#include <cstdint>

#define DECOMPOPS_EXPORT extern "C" __attribute__((visibility("default")))

DECOMPOPS_EXPORT const char* decompops_cudecomp_error();
DECOMPOPS_EXPORT const char* decompops_cudecomp_platform();
DECOMPOPS_EXPORT void* decompops_cudecomp_transpose();
DECOMPOPS_EXPORT void* decompops_cudecomp_halo();
// The GPU that this process drives; a negative number chooses the `-device - 1`th of those that there are, counted round.
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_use_device(int device);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_add_handle(int communicator);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_add_grid(std::int64_t handle, const std::int32_t* division,
                                                          std::int64_t count);
// Lets cuDecomp choose: writes the two parts of the process grid and the number of the backend.
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_choose(std::int64_t handle, const std::int32_t* search,
                                                        std::int64_t count, std::int32_t* choice);
// Whether MPI says that it takes pointers to a GPU's memory.
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_mpi_knows_gpus();
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_elements(std::int64_t grid, std::int64_t width);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_reserve(std::int64_t grid, std::int64_t bytes);
DECOMPOPS_EXPORT std::int64_t decompops_cudecomp_clear();

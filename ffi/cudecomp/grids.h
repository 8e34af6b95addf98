// The registry of cuDecomp's handles and grid descriptors. They are made collectively, by Python, before a program that uses
// them is compiled; kernels only look them up.

#pragma once

#include <cuda_runtime.h>
#include <cudecomp.h>

#include <cstdint>
#include <string>

#include "common/plan.h"

namespace decompops::cudecomp {

struct Grid {
  cudecompHandle_t handle;
  cudecompGridDesc_t descriptor;
  int along;           // ranks exchange along the first (0) or the second (1) axis of the process grid
  void* workspace;     // cuDecomp's own memory, where its backend needs that; else null
  std::int64_t bytes;  // of it
};

// How a grid is divided, in cuDecomp's terms, and how `backend` shall communicate in updates of halos or in transposes:
// field for field `Grid` in decompops/_backend/grids.py.
struct Division {
  std::int32_t lengths[3], parts[2], order[3][3];
  std::int32_t along, halo, backend;
};
static_assert(sizeof(Division) == 17 * sizeof(std::int32_t), "it comes from Python as so many integers");

// What cuDecomp shall choose: how to communicate in transposes, or in updates of halos of z-pencils, by timing them; and the
// process grid, where `parts` are zero. Field for field `Search` in decompops/_backend/grids.py.
struct Search {
  std::int32_t lengths[3], parts[2], order[3][3];
  std::int32_t dtype;  // 0 to 3: float32, float64, complex64, complex128
  std::int32_t halo_width[3], periodic[3];
  std::int32_t halo, mpi, nccl, nvshmem, trials;
};
static_assert(sizeof(Search) == 26 * sizeof(std::int32_t), "it comes from Python as so many integers");

struct Choice {
  std::int32_t parts[2], backend;
};

// Halos of `width` layers on both sides of X-pencils, along Y or Z: those where ranks exchange along the grid's first or
// second axis.
struct Halo {
  std::int32_t axis, extents[3] = {0, 0, 0};
  Halo(const Grid& grid, std::int64_t width) : axis(1 + grid.along) {
    extents[axis] = static_cast<std::int32_t>(width);
  }
};

// Throws `Failure` with what cuDecomp's result means.
void check(cudecompResult_t result, const char* what);
void check_cuda(cudaError_t code, const char* what);

// A handle on the ranks of a communicator, by its Fortran number. Collective over it, as are all but `find` and `elements`.
std::int64_t add_handle(int communicator);
std::int64_t add_grid(std::int64_t handle, const Division& division);
Choice choose(std::int64_t handle, const Search& search);
// Has cuDecomp allocate work space of at least `bytes`.
void reserve(std::int64_t grid, std::int64_t bytes);
Grid find(std::int64_t grid);
// The elements of work space that a transpose needs (`width` 0), or else an update of halos.
std::int64_t elements(std::int64_t grid, std::int64_t width);
// Destroys everything, in the reverse order.
void clear();

}  // namespace decompops::cudecomp

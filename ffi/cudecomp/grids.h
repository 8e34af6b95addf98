// The registry of cuDecomp's handles and grid descriptors. All ranks create handles and descriptors together, before
// Python compiles a program that uses them. Kernels only look up existing handles and descriptors.

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
  void* workspace;     // cuDecomp's own memory if its backend needs it, otherwise null
  std::int64_t bytes;  // the size of `workspace`
};

// How a grid is divided, in cuDecomp's terms. `backend` is cuDecomp's number for the way to communicate. If `halo` is
// 1, this is the way for updates of halos, otherwise for transposes. The fields are those of `Grid` in
// decompops/_backend/cudecomp/grids.py.
struct Division {
  std::int32_t lengths[3], parts[2], order[3][3];
  std::int32_t along, halo, backend;
};
static_assert(sizeof(Division) == 17 * sizeof(std::int32_t), "it comes from Python as so many integers");

// A search in which cuDecomp measures times. If `halo` is 0, cuDecomp chooses how to communicate in transposes. If
// `halo` is 1, it chooses how to communicate in updates of the halos of z-pencils. If `parts` are zero, it also chooses
// the process grid. The fields are those of `Search` in decompops/_backend/cudecomp/grids.py.
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

// Halos of `width` layers on both sides of X-pencils. If `grid.along` is 0, the halos lie along Y, and ranks exchange
// them along the first axis of the process grid. If `grid.along` is 1, the halos lie along Z, and ranks exchange them
// along the second axis.
struct Halo {
  std::int32_t axis, extents[3] = {0, 0, 0};
  Halo(const Grid& grid, std::int64_t width) : axis(1 + grid.along) {
    extents[axis] = static_cast<std::int32_t>(width);
  }
};

// Throws `Failure` with the meaning of cuDecomp's status code.
void check(cudecompResult_t result, const char* what);
void check_cuda(cudaError_t code, const char* what);

// A handle for the ranks of a communicator, given by its Fortran number. All functions except `find` and `elements` are
// collective over the communicator.
std::int64_t add_handle(int communicator);
std::int64_t add_grid(std::int64_t handle, const Division& division);
Choice choose(std::int64_t handle, const Search& search);
// Lets cuDecomp allocate work space of at least `bytes`.
void reserve(std::int64_t grid, std::int64_t bytes);
Grid find(std::int64_t grid);
// The number of elements of work space for a transpose (`width` 0) or for an update of halos.
std::int64_t elements(std::int64_t grid, std::int64_t width);
// Destroys all descriptors and then all handles, the newest first.
void clear();

}  // namespace decompops::cudecomp

// The registry of cuDecomp's handles and grid descriptors. They are made collectively, by Python, before a program that uses
// them is compiled; kernels only look them up.

#pragma once

#include <cudecomp.h>

#include <cstdint>
#include <string>

#include "common/plan.h"

namespace decompops::cudecomp {

struct Grid {
  cudecompHandle_t handle;
  cudecompGridDesc_t descriptor;
  void* workspace;     // cuDecomp's own memory, where its backend needs that; else null
  std::int64_t bytes;  // of it
};

// How a grid is divided, in cuDecomp's terms: field for field `Grid` in decompops/_backend/grids.py.
struct Division {
  std::int32_t lengths[3], parts[2], order[3][3];
  std::int32_t column_major, transpose_backend, halo_backend;
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

// Halos of `width` layers on both sides along Y, the only ones that we ask for.
struct Halo {
  std::int32_t extents[3];
  explicit Halo(std::int64_t width) : extents{0, static_cast<std::int32_t>(width), 0} {}
};

// Throws `Failure` with what cuDecomp's result means.
void check(cudecompResult_t result, const char* what);

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

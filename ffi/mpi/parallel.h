// Loops over threads, with OpenMP where the compiler has it.

#pragma once

#include <exception>

#include "mpi/pieces.h"

namespace decompops::mpi {

// The axis to cut `region` along for several threads: the first one of grid axes and batch that has enough cells, or else
// the one that has most. Not one of `whole`, two axes or one twice; -1 if there is no other.
inline int axis_to_cut(const Region& region, int threads, int whole = -1, int whole_too = -1) {
  int best = -1;
  for (int i = 0; i < region.axes(); ++i) {
    const int axis = (i + 1) % region.axes();
    if (axis == whole || axis == whole_too) continue;
    if (region.count(axis) >= threads) return axis;
    if (best < 0 || region.count(axis) > region.count(best)) best = axis;
  }
  return best;
}

// Calls `body(part, thread)` for `threads` parts of `region`, cut along `axis`.
// What one of them throws is thrown on when all have ended.
template <class Body>
void in_parallel(int threads, const Region& region, int axis, const Body& body) {
  if (threads == 1) return body(region, 0);
  std::exception_ptr failure;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static, 1)
#endif
  for (int thread = 0; thread < threads; ++thread) {
    const Index low = region.lo[axis], count = region.count(axis);
    const Region part = region.with(axis, low + count * thread / threads, low + count * (thread + 1) / threads);
    try {
      body(part, thread);
    } catch (...) {
#ifdef _OPENMP
#pragma omp critical
#endif
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace decompops::mpi

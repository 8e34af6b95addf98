// Loops over threads, with OpenMP where the compiler has it.

#pragma once

#include <exception>

#include "mpi/pieces.h"

namespace decompops::mpi {

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

// Messages that are under way between the ranks of a mesh.

#pragma once

#include <mpi.h>

#include <vector>

#include "mpi/failures.h"

namespace decompops::mpi {

// Requests to or from `peers`, which are places in the mesh. The first `receives` requests are receives, and the others
// are sends.
struct Transfer {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  std::size_t receives = 0;

  // Waits for at most `longest` seconds until all messages have arrived, and returns whether they have. If they cannot
  // arrive, the function records the failure, cancels the transfer and throws. With `ready`, the function throws only if
  // another rank has failed.
  bool wait(Failures& failures, double longest = kForever, bool ready = false);
  // Cancels the transfer, so that its memory can be used for something else. Receives are cancelled at once. Sends get
  // some time, so that ranks that are already receiving them can finish. A rank that begins to receive later looks for
  // notices first, and finds one, because a failing rank sends its notices before any of its sends is cancelled.
  void withdraw() noexcept;

 private:
  std::vector<int> unfinished(const Members& members) const;
};

}  // namespace decompops::mpi

#include "mpi/transfer.h"

#include <unistd.h>

#include <algorithm>

#include "mpi/check.h"

namespace decompops::mpi {
namespace {

// After a failure, messages that other ranks are already receiving get this time to arrive.
constexpr double kLastMessages = 2;

}  // namespace

bool Transfer::wait(Failures& failures, double longest, bool ready) {
  const int count = static_cast<int>(requests.size());
  auto has_ended = [&] {
    int all = 0;
    check(MPI_Testall(count, requests.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
    return all != 0;
  };
  try {
    return failures.wait_until(has_ended, [&] { return unfinished(failures.members()); }, longest, ready);
  } catch (const std::exception&) {
    withdraw();
    throw;
  }
}

void Transfer::withdraw() noexcept {
  for (std::size_t i = 0; i < receives; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&requests[i]);
    MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
  }
  const int sends = static_cast<int>(requests.size() - receives);
  const auto start = Clock::now();
  for (int all = 0; !all && seconds_since(start) < kLastMessages; usleep(50)) {
    if (MPI_Testall(sends, requests.data() + receives, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
  }
  for (std::size_t i = receives; i < requests.size(); ++i) {
    if (requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests[i]);
  }
}

// The ranks whose requests are not complete.
std::vector<int> Transfer::unfinished(const Members& members) const {
  std::vector<int> needed;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    int done = 0;
    if (requests[i] != MPI_REQUEST_NULL) {
      check(MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE), "MPI_Request_get_status");
      const int rank = members.ranks[peers[i]];
      if (!done && std::find(needed.begin(), needed.end(), rank) == needed.end()) needed.push_back(rank);
    }
  }
  return needed;
}

}  // namespace decompops::mpi

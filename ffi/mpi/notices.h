// What ranks tell each other beside their messages: that one cannot go on, or has ended.

#pragma once

#include <mpi.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "mpi/pieces.h"

namespace decompops::mpi {

// What one of them has told.
class Notice : public Failure {
  using Failure::Failure;
};

// The notices of one communicator, for all meshes in it. All methods may be called from any thread.
class Notices {
 public:
  // Takes the communicator. Nothing else may use it.
  explicit Notices(MPI_Comm communicator);

  MPI_Comm communicator() const { return communicator_; }
  int rank() const { return rank_; }
  // Tells `ranks` (of the communicator; all of them if empty) that this one cannot go on with a mesh (0: with any), and why.
  void give_up(std::uint64_t mesh, const std::string& reason, std::vector<int> ranks = {});
  // Receives what has arrived; this also lets MPI send what others wait for, which it does within calls to it only.
  void look();
  // Throws a `Notice` if one of the ranks of a mesh has given up, or if one of `needed` has ended and what it has sent must have arrived.
  void check(std::uint64_t mesh, const std::vector<int>& ranks, const std::vector<int>& needed);
  // Tells all others that this rank ends, and waits until they do, too.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  struct GivenUp {
    int rank;
    std::uint64_t mesh;
    std::string reason;
  };

  MPI_Comm communicator_;
  int rank_ = 0, size_ = 1;
  std::mutex mutex_;
  std::vector<GivenUp> given_up_;
  std::map<int, Clock::time_point> left_;
};

}  // namespace decompops::mpi

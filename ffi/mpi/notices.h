// What ranks tell each other beside their messages: that one cannot go on, has ended, or has long been waiting.

#pragma once

#include <mpi.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/pieces.h"

namespace decompops::mpi {

// What one of them has told.
class Notice : public Failure {
  using Failure::Failure;
};

// What an error says of ranks that cannot meet.
std::string different_programs(const std::string& how);

// The notices of one communicator, for all meshes in it. All methods may be called from any thread.
class Notices {
 public:
  // Takes the communicator. Nothing else may use it.
  explicit Notices(MPI_Comm communicator);

  MPI_Comm communicator() const { return communicator_; }
  int rank() const { return rank_; }
  // Tells `ranks` (of the communicator; all of them if empty) that this one cannot go on with a mesh (0: with any), and why.
  void give_up(std::uint64_t mesh, const std::string& reason, std::vector<int> ranks = {});
  // Whether a rank below this one has told all ranks that it gives up for this very reason.
  bool is_repeated(const std::string& reason);
  // Receives what has arrived; this also lets MPI send what others wait for, which it does within calls to it only.
  void look();
  // Throws a `Notice` if one of the ranks of a mesh has given up, or if one of `needed` has ended and what it has sent must have arrived.
  void check(std::uint64_t mesh, const std::vector<int>& ranks, const std::vector<int>& needed);
  // A call on a mesh begins (+1) or ends (-1) here.
  void count(std::uint64_t mesh, int change);
  // Tells `needed` that this rank has long been waiting for them in `label`; an empty one means no longer.
  void tell_waiting(std::uint64_t mesh, const std::string& label, const std::vector<int>& needed);
  // For a rank that has long been waiting: throws if one of `needed` itself waits for this one, on a mesh without calls here.
  void check_waiting(const std::vector<int>& needed);
  // Tells all others that this rank ends, and waits until they do, too.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  struct GivenUp {
    int rank;
    std::uint64_t mesh;
    std::string reason;
  };

  void send(int tag, std::uint64_t mesh, const std::string& text, const std::vector<int>& ranks);

  MPI_Comm communicator_;
  int rank_ = 0, size_ = 1;
  std::mutex mutex_;
  std::vector<GivenUp> given_up_;
  std::map<int, Clock::time_point> left_;
  std::map<std::pair<int, std::uint64_t>, std::string> waiting_;  // what others wait in for this rank, by rank and mesh
  std::mutex calls_mutex_;                                        // of its own: nobody who begins a call waits for MPI
  std::map<std::uint64_t, int> calls_;
};

}  // namespace decompops::mpi

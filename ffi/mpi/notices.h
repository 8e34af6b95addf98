// Notices between ranks. They say that a rank cannot continue, has ended, or has been waiting for long.

#pragma once

#include <mpi.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/pieces.h"

namespace decompops::mpi {

// A failure that a notice from another rank reports.
class Notice : public Failure {
  using Failure::Failure;
};

// The text of an error about ranks that wait for each other in different operators.
std::string different_programs(const std::string& how);

// The notices of one communicator, for all meshes in it. All methods may be called from any thread.
class Notices {
 public:
  // Takes the communicator. Nothing else may use it.
  explicit Notices(MPI_Comm communicator);

  MPI_Comm communicator() const { return communicator_; }
  int rank() const { return rank_; }
  // Returns " on HOST" or " on HOST, HOST, ..." for messages about ranks, or "" if all ranks are on one host.
  std::string hosts_of(const std::vector<int>& ranks) const;
  // Tells `ranks`, or all ranks of the communicator if `ranks` is empty, why this rank cannot continue with operators
  // on a mesh, or with any operator if `mesh` is 0.
  void give_up(std::uint64_t mesh, const std::string& reason, std::vector<int> ranks = {});
  // Whether a rank with a lower number has told all ranks that it gives up for the same reason.
  bool is_repeated(const std::string& reason);
  // Receives the notices that have arrived. MPI sends data only while one of its functions runs, so this call also lets
  // MPI send data to other ranks.
  void look();
  // Throws a `Notice` if a rank of a mesh has given up, or if one of `needed` ended so long ago that all its messages
  // must have arrived.
  void check(std::uint64_t mesh, const std::vector<int>& ranks, const std::vector<int>& needed);
  // Records that a call on a mesh begins (+1) or ends (-1) on this rank.
  void count(std::uint64_t mesh, int change);
  // Tells the ranks `needed` that this rank has been waiting for them for long, in the operator `label`. An empty
  // `label` tells them that the wait is over.
  void tell_waiting(std::uint64_t mesh, const std::string& label, const std::vector<int>& needed);
  // A rank that has been waiting for long calls this. Throws if one of `needed` waits for this rank, on a mesh on which
  // this rank has no call.
  void check_waiting(const std::vector<int>& needed);
  // Tells all other ranks that this rank ends, and waits until they end, too.
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
  std::vector<char> hosts_;  // the names of the hosts, by rank, with `kHostName` bytes each; empty for one host
  std::mutex mutex_;
  std::vector<GivenUp> given_up_;
  std::map<int, Clock::time_point> left_;
  std::map<std::pair<int, std::uint64_t>, std::string> waiting_;  // where others wait for this rank
  std::mutex calls_mutex_;                                        // separate, so that no call waits for MPI
  std::map<std::uint64_t, int> calls_;
};

}  // namespace decompops::mpi

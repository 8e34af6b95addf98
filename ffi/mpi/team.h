// The ranks of one mesh: how they agree on what comes next, talk to each other and fail together.

#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mpi/messages.h"

namespace decompops::mpi {

// One operator of one compiled program. Ranks that compile the same programs count the same occurrences.
struct Identity {
  std::uint64_t fingerprint, occurrence;
  bool operator==(const Identity& other) const {
    return fingerprint == other.fingerprint && occurrence == other.occurrence;
  }
};

// One execution of an operator. `done` gets the error's text, empty for none.
struct Call {
  Identity identity;
  std::string label;
  std::function<void()> run;
  std::function<void(const std::string&)> done;
};

// What every rank of a mesh does, in one order: the first rank tells the others what it does next (docs/kernels.md).
class Team {
 public:
  Team(MPI_Comm base, const std::vector<int>& ranks, int tag);
  ~Team();

  int rank() const { return rank_; }
  Index messages() const { return messages_; }
  Index sent_bytes() const { return sent_bytes_; }
  // Has the call run when it is its turn, in a thread of the team's own: XLA's must be free to go on to what other ranks
  // may be waiting for, a collective of XLA's for example.
  void submit(std::shared_ptr<Call> call);
  void exchange(const Exchange& exchange, const Memory& memory);
  // Tells all other ranks that this one cannot go on, and why.
  void give_up(const std::string& reason);
  // Tells all others that this rank ends, and waits until they do, too. Nothing runs after it.
  void leave();
  void register_site(std::uint64_t fingerprint);

 private:
  struct Announcement {
    Identity identity;
    char label[240];
  };

  void work();
  std::shared_ptr<Call> next(std::unique_lock<std::mutex>& lock);
  void execute(Call& call, std::unique_lock<std::mutex>& lock);
  void announce(const Call& call);
  Announcement receive_announcement();
  void stop();
  void fail_waiting();
  std::string mismatch(const Call& call) const;
  // Polls `ready` until it is true; throws if another rank gives up.
  template <class Ready>
  void wait(const Ready& ready);
  void look_for_notices();

  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::atomic<Index> messages_{0}, sent_bytes_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::optional<Announcement> next_;
  std::chrono::steady_clock::time_point next_since_;
  std::deque<std::shared_ptr<Call>> waiting_;
  std::vector<std::uint64_t> sites_;
  std::thread worker_;

  struct Sent {
    Announcement announcement;
    std::vector<MPI_Request> requests;
  };
  std::deque<Sent> sent_;
  std::string failure_;  // once set, nothing runs any more
};

// Seconds until ranks that wait for different operators are told so.
void set_timeout(double seconds);

}  // namespace decompops::mpi

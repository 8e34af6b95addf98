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
#include "mpi/notices.h"

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

// Runs functions one after the other in a thread of its own.
class Runner {
 public:
  ~Runner() { stop(); }
  void submit(std::function<void()> function);
  // Runs what has been submitted, and ends the thread.
  void stop();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<std::function<void()>> waiting_;
  std::thread worker_;
};

// What every rank of a mesh does, in one order: the first rank tells the others what it does next (docs/kernels.md).
class Team {
 public:
  // Whether a program of this process has a call with this fingerprint.
  using IsCompiled = std::function<bool(std::uint64_t)>;

  // `ranks` are those of `base` that the mesh has, in its order.
  Team(MPI_Comm base, std::shared_ptr<Notices> notices, std::vector<int> ranks, IsCompiled is_compiled);
  ~Team() { stop(); }

  int rank() const { return rank_; }
  Index messages() const { return messages_; }
  Index sent_bytes() const { return sent_bytes_; }
  // Has the call run when it is its turn, in a thread of the team's own: XLA's must be free to go on to what other ranks
  // may be waiting for, a collective of XLA's for example.
  void submit(std::shared_ptr<Call> call);
  void exchange(const Exchange& exchange, const Memory& memory);
  // Ends the threads; nothing runs after it.
  void stop();
  // Frees the communicator, with all other ranks.
  void free();

 private:
  struct Announcement {
    Identity identity;
    char label[240];
  };

  void work();
  void connect();
  std::shared_ptr<Call> next(std::unique_lock<std::mutex>& lock);
  void execute(const std::shared_ptr<Call>& call, std::unique_lock<std::mutex>& lock);
  void announce(const Call& call);
  Announcement receive_announcement();
  void finish(std::shared_ptr<Call> call, const std::string& error);
  void give_up(const std::string& reason);
  // Waits for requests to or from `peers`, positions in the mesh. If that is in vain, withdraws them and throws.
  // The first `receives` of them are receives.
  void wait(std::vector<MPI_Request>& requests, const std::vector<int>& peers, std::size_t receives);
  void withdraw(std::vector<MPI_Request>& requests, std::size_t receives);
  std::vector<int> unfinished(const std::vector<MPI_Request>& requests, const std::vector<int>& peers) const;

  MPI_Comm base_, communicator_ = MPI_COMM_NULL;
  std::shared_ptr<Notices> notices_;
  std::vector<int> ranks_;
  std::uint64_t hash_;
  int rank_, size_;
  IsCompiled is_compiled_;
  std::atomic<Index> messages_{0}, sent_bytes_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::optional<Announcement> next_;
  std::chrono::steady_clock::time_point next_since_;
  std::deque<std::shared_ptr<Call>> waiting_;
  std::thread worker_;
  // XLA goes on with its program in the thread that fulfils its promise; the worker must be free for MPI.
  Runner finisher_;

  struct Sent {
    Announcement announcement;
    std::vector<MPI_Request> requests;
  };
  std::deque<Sent> sent_;
  std::string here_;  // the label of what the worker runs or waits to run
  std::string failure_;  // once set, nothing runs any more
};

// Seconds until ranks that wait for different operators are told so.
void set_timeout(double seconds);

}  // namespace decompops::mpi

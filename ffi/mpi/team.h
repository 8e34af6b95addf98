// The ranks of one mesh: how they agree on the next call, exchange messages, and fail together.

#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cpu/patience.h"
#include "cpu/runner.h"
#include "mpi/messages.h"
#include "mpi/notices.h"
#include "mpi/shared_memory.h"
#include "mpi/sharing.h"

namespace decompops::mpi {

// One operator of one compiled program. `occurrence` counts the operators with the same fingerprint. Ranks that compile
// the same programs in the same Python threads get the same counts. `thread` is a hash of the thread's name.
struct Identity {
  std::uint64_t fingerprint = 0, occurrence = 0, thread = 0;
  bool operator==(const Identity& other) const {
    return fingerprint == other.fingerprint && occurrence == other.occurrence && thread == other.thread;
  }
};

// The longest wait in seconds.
constexpr double kForever = std::numeric_limits<double>::infinity();

// One execution of an operator. `details` distinguishes the operator from others with the same label. `run` returns
// whether the execution has ended. If `run` has waited for other ranks for longer than the given time, it returns
// false, and continues at the same point when it is called again. `done` gets the text of the error, which is empty if
// no error has occurred. `done` must not throw. A quick call may run in the thread that submits it.
struct Call {
  Identity identity;
  std::string label, details;
  bool is_quick = false;
  std::function<bool(double)> run;
  std::function<void(const std::string&)> done;
  std::thread::id submitter = {};
};

// Runs the calls of all ranks of a mesh in one order: the first rank decides which call comes next, and a tree of ranks
// passes the decision on (docs/kernels.md).
class Team {
 public:
  // Returns whether a program of this process has the call.
  using IsCompiled = std::function<bool(const Identity&)>;

  // `ranks` are the ranks of the mesh in `base`, in the order of the mesh. `node` are the ranks that share memory with
  // this rank.
  Team(MPI_Comm base, std::shared_ptr<Notices> notices, std::vector<int> ranks, const std::vector<int>& node,
       IsCompiled is_compiled);
  ~Team() { stop(); }

  int rank() const { return rank_; }
  Index messages() const { return messages_; }
  Index sent_bytes() const { return sent_bytes_; }
  // The number of announcements that this rank has passed on.
  Index announcements() const { return announcements_; }
  // The bytes of this rank's memory that it shares with other ranks.
  Index shared_bytes() const { return shared_bytes_; }
  // Queues the call. The team's own thread runs the call when its turn comes, because XLA's thread must stay free for
  // other work, such as a collective of XLA for which other ranks may be waiting. A quick call may start in the calling
  // thread if no other call is queued or running. After a short wait for other ranks, the call continues in the team's
  // thread. If `submit` throws, the call does not run.
  void submit(std::shared_ptr<Call> call);
  // Makes the next call and every later call fail on all ranks, for a reason that was found outside of the team's
  // thread.
  void refuse(const std::string& reason);
  // `start` and `finish` are the two halves of an exchange. Other exchanges and transforms can run in between. `finish`
  // waits for the exchange that was started first, and returns whether this exchange has ended in time. If the call
  // fails, exchanges under way are cancelled.
  void start(const Exchange& exchange, const Memory& memory);
  bool finish(double longest);
  bool is_under_way() const { return !under_way_.empty(); }
  // The places (positions in the mesh) of the other ranks that share memory with this rank.
  const std::vector<int>& sharing() const { return sharing_; }
  // `own_memory` returns the memory of this rank, with room for `bytes` bytes of data. `memory_of` waits until the
  // memory of the rank at `place` has room for `bytes` bytes, and returns that memory.
  SharedMemory& own_memory(Index bytes);
  SharedMemory& memory_of(int place, Index bytes);
  // All ranks count the phases of all programs. `finish_phase` tells the other ranks that a phase has ended. `wait_for`
  // waits at most `longest` seconds until the neighbours with these indices have ended as many phases as this rank, and
  // returns whether they have.
  void finish_phase();
  bool wait_for(const std::vector<int>& indices, const std::vector<Neighbour>& neighbours, double longest);
  void count(Index messages, Index bytes);
  // Lets MPI continue with exchanges. Call this often while exchanges are under way. Throws if another rank has failed.
  void progress();
  // Ends the threads. No call runs afterwards.
  void stop();
  // Frees the communicator. All ranks of the mesh must call this function.
  void free();

 private:
  // An announcement by the first rank. Long texts are cut off.
  struct Announcement {
    Identity identity;
    char label[400], details[400];
  };
  struct Sent {
    Announcement announcement;
    std::vector<MPI_Request> requests;
  };
  // Requests to or from `peers`, which are positions in the mesh. The first `receives` requests are receives, and the
  // others are sends.
  struct Transfer {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    std::size_t receives = 0;
  };

  void refuse_locked(const char* reason) noexcept;
  void work();
  void lead(std::unique_lock<std::mutex>& lock, double longest);
  void step(std::unique_lock<std::mutex>& lock, double longest);
  void connect();
  void meet(int tag, bool ready);
  void share_memory();
  std::shared_ptr<Call> next(std::unique_lock<std::mutex>& lock, double longest);
  void execute(std::unique_lock<std::mutex>& lock, double longest);
  static Announcement announcement_of(const Call& call);
  void announce(const Announcement& announcement);
  void listen_for_announcement();
  std::string both_sides(const Announcement& mine) const;
  void end_current(std::unique_lock<std::mutex>& lock, const std::string& error) noexcept;
  void end(const Call& call, const std::string& error) noexcept;
  // After `fail`, no call runs any more. If the reason comes from this rank (`own`), `fail` tells the other ranks.
  void fail(const std::string& reason, bool own) noexcept;
  // Waits for a transfer, and returns whether it has ended in time. If the transfer cannot end, this function lets the
  // team fail, cancels the transfer and throws. With `ready`, the function throws only if another rank has failed.
  bool wait(Transfer& transfer, double longest = kForever, bool ready = false);
  // Waits in the same way for the event that `has_ended` reports. `needed` returns the ranks that must still act.
  template <class HasEnded, class Needed>
  bool wait_until(const HasEnded& has_ended, const Needed& needed, double longest, bool ready = false);
  void check_failures();
  void watch(const std::vector<int>& needed, Patience& patience, std::vector<int>& told);
  void withdraw(Transfer& transfer) noexcept;
  std::vector<int> unfinished(const Transfer& transfer) const;

  MPI_Comm base_, communicator_ = MPI_COMM_NULL;
  std::shared_ptr<Notices> notices_;
  std::vector<int> ranks_, sharing_;
  std::uint64_t hash_;
  int rank_, size_;
  IsCompiled is_compiled_;
  std::atomic<Index> messages_{0}, sent_bytes_{0}, shared_bytes_{0}, announcements_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};
  std::deque<std::shared_ptr<Call>> waiting_;
  bool refused_ = false;
  std::string refusal_;
  // The thread that tells XLA that calls have ended. XLA continues its program in this thread, so this thread cannot be
  // the worker, which must stay free for MPI.
  Runner finisher_;

  bool is_led_ = false;            // whether a thread runs calls; only this thread uses the members below
  std::shared_ptr<Call> current_;  // the call that runs, or has begun to run
  std::optional<Announcement> next_;
  Clock::time_point next_since_;
  Announcement incoming_;
  Transfer listening_;  // the receive of the next announcement
  std::deque<Sent> sent_;
  std::deque<Transfer> under_way_;
  std::map<int, std::unique_ptr<SharedMemory>> memories_;  // by place
  std::uint64_t finished_ = 0;                             // the phases that this rank has finished
  Clock::time_point looked_;                               // when `progress` last called MPI
  std::string here_, before_;  // the labels of the current or next call, and of the call before it
  bool failed_ = false;
  std::string failure_;
  std::thread worker_;  // the last member, because this thread uses all others
};

}  // namespace decompops::mpi

// The ranks of one mesh: how they agree on what comes next, talk to each other and fail together.

#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
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

namespace decompops::mpi {

// One operator of one compiled program. Ranks that compile the same programs in the same Python threads count the same
// occurrences; `thread` is a hash of the thread's name.
struct Identity {
  std::uint64_t fingerprint = 0, occurrence = 0, thread = 0;
  bool operator==(const Identity& other) const {
    return fingerprint == other.fingerprint && occurrence == other.occurrence && thread == other.thread;
  }
};

// How many seconds somebody waits at most.
constexpr double kForever = std::numeric_limits<double>::infinity();

// One execution of an operator. `details` is what tells it from others with the same label. `run` returns whether it has
// ended. It has not where other ranks keep it waiting for longer than the given time; called again, it goes on there. `done`
// gets the error's text, empty for none; it must not throw. A quick call may run in the thread that submits it.
struct Call {
  Identity identity;
  std::string label, details;
  bool is_quick = false;
  std::function<bool(double)> run;
  std::function<void(const std::string&)> done;
  std::thread::id submitter = {};
};

// What every rank of a mesh does, in one order: the first rank decides what comes next, and a tree of ranks passes it on
// (docs/kernels.md).
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
  // may be waiting for, a collective of XLA's for example. A quick call whose turn it is runs here, for as long as it has not
  // to wait. If this throws, the call will not run.
  void submit(std::shared_ptr<Call> call);
  // Has this and every later call fail on all ranks, for a reason found outside of the team's thread.
  void refuse(const std::string& reason);
  // The two halves of an exchange, for others to be started and lines to be transformed in between. `finish` ends the one
  // that was started first, and returns whether it has ended in time. If the call fails, those under way are withdrawn.
  void start(const Exchange& exchange, const Memory& memory);
  bool finish(double longest);
  bool is_under_way() const { return !under_way_.empty(); }
  // To be called often while exchanges are under way: lets MPI go on with them, and throws if another rank has failed.
  void progress();
  // Ends the threads; nothing runs after it.
  void stop();
  // Frees the communicator, with all other ranks.
  void free();

 private:
  // What the first rank has decided. Long texts are cut off.
  struct Announcement {
    Identity identity;
    char label[400], details[400];
  };
  struct Sent {
    Announcement announcement;
    std::vector<MPI_Request> requests;
  };
  // Requests to or from `peers`, positions in the mesh. The first `receives` of them are receives.
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
  std::shared_ptr<Call> next(std::unique_lock<std::mutex>& lock, double longest);
  void execute(std::unique_lock<std::mutex>& lock, double longest);
  static Announcement announcement_of(const Call& call);
  void announce(const Announcement& announcement);
  void listen_for_announcement();
  std::string both_sides(const Announcement& mine) const;
  void end_current(std::unique_lock<std::mutex>& lock, const std::string& error) noexcept;
  void end(const Call& call, const std::string& error) noexcept;
  // From now on nothing runs any more. If the reason is this rank's own, the others are told.
  void fail(const std::string& reason, bool own) noexcept;
  // Waits for a transfer, and returns whether it has ended in time. If that is in vain, fails, withdraws it and throws. If
  // `ready`, this rank itself may not fail any more.
  bool wait(Transfer& transfer, double longest = kForever, bool ready = false);
  void listen();
  void watch(const Transfer& transfer, Patience& patience, std::vector<int>& told);
  void withdraw(Transfer& transfer) noexcept;
  std::vector<int> unfinished(const Transfer& transfer) const;

  MPI_Comm base_, communicator_ = MPI_COMM_NULL;
  std::shared_ptr<Notices> notices_;
  std::vector<int> ranks_;
  std::uint64_t hash_;
  int rank_, size_;
  IsCompiled is_compiled_;
  std::atomic<Index> messages_{0}, sent_bytes_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};
  std::deque<std::shared_ptr<Call>> waiting_;
  bool refused_ = false;
  std::string refusal_;
  // XLA goes on with its program in the thread that fulfils its promise; the worker must be free for MPI.
  Runner finisher_;

  bool is_led_ = false;  // by a thread, to which all that follows belongs
  std::shared_ptr<Call> current_;  // what runs, or has begun to
  std::optional<Announcement> next_;
  Clock::time_point next_since_;
  Announcement incoming_;
  Transfer listening_;  // for an announcement
  std::deque<Sent> sent_;
  std::deque<Transfer> under_way_;
  Clock::time_point looked_;   // when `progress` last looked
  std::string here_, before_;  // the labels of what runs or is to run, and of what ran before that
  bool failed_ = false;
  std::string failure_;
  std::thread worker_;  // the last member: it uses all others
};

}  // namespace decompops::mpi

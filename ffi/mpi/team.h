// The ranks of one mesh: how they agree on what comes next, talk to each other and fail together.

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

  // `ranks` are those of `base` that the mesh has, in its order; `node` are those that share memory with this one.
  Team(MPI_Comm base, std::shared_ptr<Notices> notices, std::vector<int> ranks, const std::vector<int>& node,
       IsCompiled is_compiled);
  ~Team() { stop(); }

  int rank() const { return rank_; }
  Index messages() const { return messages_; }
  Index sent_bytes() const { return sent_bytes_; }
  // To how many ranks this one has passed on announcements.
  Index announcements() const { return announcements_; }
  // The bytes of this rank's memory that others share.
  Index shared_bytes() const { return shared_bytes_; }
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
  // The places in the mesh of the other ranks that share memory with this one.
  const std::vector<int>& sharing() const { return sharing_; }
  // The memory of this rank, and that of the one at a place as soon as it holds so many bytes of data.
  SharedMemory& own_memory(Index bytes);
  SharedMemory& memory_of(int place, Index bytes);
  // All ranks count the phases of all programs. `finish_phase` lets the others know that one has ended; `wait_for` waits for some of
  // `neighbours`, by index, to have ended as many as this rank, and returns whether they have in time.
  void finish_phase();
  bool wait_for(const std::vector<int>& indices, const std::vector<Neighbour>& neighbours, double longest);
  void count(Index messages, Index bytes);
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
  void share_memory();
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
  // The same for what `has_ended` tells; `needed` are the ranks that it lacks.
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
  // XLA goes on with its program in the thread that fulfils its promise; the worker must be free for MPI.
  Runner finisher_;

  bool is_led_ = false;            // by a thread, to which all that follows belongs
  std::shared_ptr<Call> current_;  // what runs, or has begun to
  std::optional<Announcement> next_;
  Clock::time_point next_since_;
  Announcement incoming_;
  Transfer listening_;  // for an announcement
  std::deque<Sent> sent_;
  std::deque<Transfer> under_way_;
  std::map<int, std::unique_ptr<SharedMemory>> memories_;  // by place
  std::uint64_t finished_ = 0;                             // phases
  Clock::time_point looked_;                               // when `progress` last looked
  std::string here_, before_;  // the labels of what runs or is to run, and of what ran before that
  bool failed_ = false;
  std::string failure_;
  std::thread worker_;  // the last member: it uses all others
};

}  // namespace decompops::mpi

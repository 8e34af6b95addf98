// The ranks of a mesh: whether they can all continue, and how one of them waits for others.

#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/patience.h"
#include "mpi/notices.h"

namespace decompops::mpi {

// The longest wait in seconds.
constexpr double kForever = std::numeric_limits<double>::infinity();

// The ranks of a mesh. The place of a rank is its position in the mesh.
struct Members {
  // `rank` is the number of this rank. Throws if it is not in the mesh.
  Members(std::vector<int> ranks, int rank);

  const std::vector<int> ranks;  // by place; numbered as in the communicator that the mesh is made of
  const std::uint64_t mesh;      // identifies the mesh in notices
  const int place;               // of this rank
  int size() const { return static_cast<int>(ranks.size()); }
};

// The failures of the ranks of a mesh. A failure of one rank reaches all ranks. After it, no call runs any more. Only
// the thread that runs calls uses this object, except for the functions that say otherwise.
class Failures {
 public:
  Failures(Members members, std::shared_ptr<Notices> notices);

  const Members& members() const { return members_; }
  // Records in messages that this rank is in the operator `label`, or waits until it can begin.
  void enter(const std::string& label) { here_ = label; }
  // Records that this rank has run the operator to its end.
  void leave() { before_ = here_; }
  // Records that the ranks of the mesh cannot continue. If the error is no `Notice`, it comes from this rank, and the
  // other ranks are told. Only the first error counts.
  void fail(const std::exception& error) noexcept;
  bool has_failed() const { return has_failed_; }
  const std::string& failure() const { return failure_; }
  // Throws a `Notice` if another rank has failed.
  void check() { notices_->check(members_.mesh, members_.ranks, {}); }
  // Receives notices.
  void look() { notices_->look(); }
  // Waits for at most `longest` seconds until `has_ended` returns true, and returns whether it did. If the wait cannot
  // end, the function records the failure and throws. `needed` returns the ranks that must still act. With `ready`, the
  // function throws only if another rank has failed.
  template <class HasEnded, class Needed>
  bool wait_until(const HasEnded& has_ended, const Needed& needed, double longest, bool ready = false);

  // Any thread may call the following functions.

  // Makes the next call and every later call fail on all ranks, for a reason that was found outside of the thread that
  // runs calls.
  void refuse(const char* reason) noexcept;
  // Throws if `refuse` was called.
  void check_refusal();
  // Records that a call begins (+1) or ends (-1) on this rank.
  void count(int change) { notices_->count(members_.mesh, change); }
  // Makes waits fail, because this rank ends.
  void end() { is_ending_ = true; }
  bool is_ending() const { return is_ending_; }

 private:
  void check_when_ready();
  void watch(const std::vector<int>& needed, Patience& patience, std::vector<int>& told);

  const Members members_;
  const std::shared_ptr<Notices> notices_;
  std::string here_, before_;  // the labels of the current or next call, and of the call before it
  bool has_failed_ = false;
  std::string failure_;
  std::atomic<bool> is_ending_{false};
  std::mutex mutex_;                     // of `refusal_`
  std::atomic<bool> is_refused_{false};  // so that a call takes the mutex only if it was refused
  std::string refusal_;
};

template <class HasEnded, class Needed>
bool Failures::wait_until(const HasEnded& has_ended, const Needed& needed, double longest, bool ready) {
  Patience patience;
  std::vector<int> told;
  try {
    for (Index spins = 1; !has_ended(); ++spins) {
      if (spins % 16 == 0 && patience.seconds() > longest) return false;
      if (spins % 256 == 0) ready ? check_when_ready() : watch(needed(), patience, told);
      // Other ranks may need this core, above all if there are more ranks than cores.
      if (spins > 200) sched_yield();
      if (spins > 3000) usleep(50);
    }
    notices_->tell_waiting(members_.mesh, "", told);
    return true;
  } catch (const std::exception& error) {
    fail(error);
    throw;
  }
}

}  // namespace decompops::mpi

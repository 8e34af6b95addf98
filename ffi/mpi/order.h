// The order in which the ranks of a mesh run their calls.

#pragma once

#include <mpi.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mpi/call.h"
#include "mpi/messages.h"

namespace decompops::mpi {

// Decides which call comes next, in the same way on all ranks of a mesh: the first rank announces its calls in the order
// in which they reach it, and a tree of ranks passes the announcements on (docs/kernels_mpi_order.md). Only the thread
// that runs calls uses this object, except for `announcements`.
class Order {
 public:
  // Returns whether a program of this process has the call.
  using IsCompiled = std::function<bool(const Identity&)>;
  using Queue = std::deque<std::shared_ptr<Call>>;

  // `failures` and `messages` must outlive this object.
  Order(Failures& failures, const Messages& messages, IsCompiled is_compiled)
      : failures_(failures), messages_(messages), is_compiled_(std::move(is_compiled)) {}

  // Whether this rank decides which call comes next.
  bool decides() const { return failures_.members().place == 0; }
  // Takes the next announcement if it has come, and passes it on. Another rank than the first calls this, even if it has
  // no call, because other ranks may wait for the announcement.
  void listen();
  // Waits for at most `longest` seconds until the next call is announced, and returns whether it is.
  bool wait(double longest);
  // Returns the call to run now, and removes it from the queue, which has at least one call. The first rank announces
  // the call. Returns null if this rank has not submitted the announced call yet. Throws if it never will.
  std::shared_ptr<Call> take(Queue& waiting);
  // The number of announcements that this rank has passed on.
  Index announcements() const { return announcements_; }
  // Ends all messages. All ranks of the mesh must call this function.
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

  static Announcement announcement_of(const Call& call);
  void announce(const Announcement& announcement);
  void check_announced(const Queue& waiting) const;
  std::string both_sides(const Announcement& mine) const;

  Failures& failures_;
  const Messages& messages_;
  const IsCompiled is_compiled_;
  std::optional<Announcement> next_;
  Clock::time_point next_since_;
  Announcement incoming_;
  Transfer listening_;  // the receive of the next announcement
  std::deque<Sent> sent_;
  std::atomic<Index> announcements_{0};
};

}  // namespace decompops::mpi

// The ranks of one mesh, and the threads in which they run their calls.

#pragma once

#include <mpi.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpu/runner.h"
#include "mpi/failures.h"
#include "mpi/messages.h"
#include "mpi/node_memory.h"
#include "mpi/order.h"

namespace decompops::mpi {

// Runs the calls of all ranks of a mesh in one order, one at a time. Calls run in the team's own thread or, if they are
// quick, in the thread that submits them.
class Team {
 public:
  // `ranks` are the ranks of the mesh in `base`, in the order of the mesh. `node` are the ranks that share memory with
  // this rank.
  Team(MPI_Comm base, std::shared_ptr<Notices> notices, std::vector<int> ranks, const std::vector<int>& node,
       Order::IsCompiled is_compiled);
  ~Team() { stop(); }

  // The position of this rank in the mesh.
  int place() const { return failures_.members().place; }
  // Calls use these two objects.
  Messages& messages() { return messages_; }
  NodeMemory& memory() { return memory_; }
  // The number of announcements that this rank has passed on.
  Index announcements() const { return order_.announcements(); }
  // Queues the call. The team's own thread runs the call when its turn comes, because XLA's thread must stay free for
  // other work, such as a collective of XLA for which other ranks may be waiting. A quick call may start in the calling
  // thread if no other call is queued or running. After a short wait for other ranks, the call continues in the team's
  // thread. If `submit` throws, the call does not run. If a call fails, its exchanges under way are cancelled.
  void submit(std::shared_ptr<Call> call);
  // Makes the next call and every later call fail on all ranks, for a reason that was found outside of the team's
  // thread.
  void refuse(const std::string& reason);
  // Ends the threads. No call runs afterwards.
  void stop();
  // Frees the communicator. All ranks of the mesh must call this function.
  void free();

 private:
  void work();
  void lead(std::unique_lock<std::mutex>& lock, double longest);
  void step(std::unique_lock<std::mutex>& lock, double longest);
  void execute(std::unique_lock<std::mutex>& lock, double longest);
  void end_current(std::unique_lock<std::mutex>& lock, const std::string& error) noexcept;
  void end(const Call& call, const std::string& error) noexcept;

  // Only the thread that runs calls uses these four objects, except for the functions that any thread may call.
  Failures failures_;
  Messages messages_;
  NodeMemory memory_;
  Order order_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Order::Queue waiting_;
  // The thread that tells XLA that calls have ended. XLA continues its program in this thread, so this thread cannot be
  // the worker, which must stay free for MPI.
  Runner finisher_;
  bool is_led_ = false;            // whether a thread runs calls
  std::shared_ptr<Call> current_;  // the call that runs, or has begun to run; only the thread that runs calls uses it
  std::thread worker_;             // the last member, because this thread uses all others
};

}  // namespace decompops::mpi

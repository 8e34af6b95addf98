// The messages that the ranks of a mesh exchange in operators.

#pragma once

#include <mpi.h>

#include <atomic>
#include <deque>

#include "cpu/exchange.h"
#include "mpi/transfer.h"

namespace decompops::mpi {

// The messages between this rank and the other ranks of a mesh. Only the thread that runs calls uses this object, except
// for the numbers of messages and bytes.
class Messages {
 public:
  // `base` is the communicator that the mesh is made of. `failures` must outlive this object.
  Messages(MPI_Comm base, Failures& failures) : base_(base), failures_(failures) {}

  // Makes the communicator of the mesh. All ranks of the mesh must call this function.
  void connect();
  bool is_connected() const { return communicator_ != MPI_COMM_NULL; }
  // The communicator of the mesh. Its ranks are the places in the mesh.
  MPI_Comm communicator() const { return communicator_; }
  // Frees the communicator. All ranks of the mesh must call this function.
  void free();
  // `start` and `finish` are the two halves of an exchange. Other exchanges and transforms can run in between. `finish`
  // waits for the exchange that was started first, and returns whether this exchange has ended in time.
  void start(const Exchange& exchange, const Memory& memory);
  bool finish(double longest);
  bool is_under_way() const { return !under_way_.empty(); }
  // Lets MPI continue with exchanges. Call this often while exchanges are under way. Throws if another rank has failed.
  void progress();
  // Cancels the exchanges that are under way.
  void withdraw() noexcept;
  // Counts messages that were sent in another way.
  void count(Index messages, Index bytes);
  Index sent() const { return sent_; }
  Index sent_bytes() const { return sent_bytes_; }

 private:
  void meet(int tag, bool ready);

  const MPI_Comm base_;
  Failures& failures_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::deque<Transfer> under_way_;
  Clock::time_point looked_;  // when `progress` last called MPI
  std::atomic<Index> sent_{0}, sent_bytes_{0};
};

}  // namespace decompops::mpi

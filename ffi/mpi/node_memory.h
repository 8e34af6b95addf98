// The memory that the ranks of a mesh on the same node share.

#pragma once

#include <mpi.h>

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "mpi/failures.h"
#include "mpi/shared_memory.h"
#include "mpi/sharing.h"

namespace decompops::mpi {

// The memory of this rank and of the other ranks of its node, and the phases of their programs. Only the thread that
// runs calls uses this object, except for `bytes`.
class NodeMemory {
 public:
  // `node` are the ranks that share memory with this rank. `failures` must outlive this object.
  NodeMemory(Failures& failures, const std::vector<int>& node);

  // The places of the other ranks that share memory with this rank.
  const std::vector<int>& sharing() const { return sharing_; }
  // Exchanges the addresses of the memory. `communicator` is that of the mesh. All ranks of the node must call this
  // function.
  void connect(MPI_Comm communicator);
  // `own` returns the memory of this rank, with room for `bytes` bytes of data. `at` waits until the memory of the rank
  // at `place` has room for `bytes` bytes, and returns that memory.
  SharedMemory& own(Index bytes);
  SharedMemory& at(int place, Index bytes);
  // All ranks count the phases of all programs. `finish_phase` tells the other ranks that a phase has ended. `wait_for`
  // waits at most `longest` seconds until the neighbours with these indices have ended as many phases as this rank, and
  // returns whether they have.
  void finish_phase();
  bool wait_for(const std::vector<int>& indices, const std::vector<Neighbour>& neighbours, double longest);
  // The bytes of this rank's memory that it shares with other ranks.
  Index bytes() const { return bytes_; }

 private:
  Failures& failures_;
  std::vector<int> sharing_;
  std::map<int, std::unique_ptr<SharedMemory>> memories_;  // by place
  std::uint64_t finished_ = 0;                             // the phases that this rank has finished
  std::atomic<Index> bytes_{0};
};

}  // namespace decompops::mpi

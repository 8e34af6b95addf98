// Memory that the ranks of a node share. Each rank has its own memory, which the others may read and write.

#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/pieces.h"

namespace decompops::mpi {

// A file in memory, as other processes of the same node find it.
struct MemoryFile {
  pid_t process;
  int number;
};

// The memory of one rank, as this process maps it: the counters of the rank, then bytes for data.
class SharedMemory {
 public:
  // New memory of this rank.
  SharedMemory();
  // The memory of another rank. No file stays open for it, because a process may open only a limited number of files.
  explicit SharedMemory(const MemoryFile& file);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;

  const MemoryFile& file() const { return file_; }
  // The number of phases that the rank has finished. A phase lies between two exchanges.
  std::atomic<std::uint64_t>& finished() const { return *static_cast<std::atomic<std::uint64_t>*>(memory_); }
  // Makes room for this number of bytes in the memory of this rank. Bytes that are added are zero.
  void grow(Index bytes);
  // Maps the first `bytes` of another rank's memory. Returns false while that memory is smaller.
  bool find(Index bytes);
  std::byte* data() const;

 private:
  void map(int file, Index bytes);

  MemoryFile file_;
  void* memory_ = nullptr;
  Index bytes_ = 0;
};

// The ranks of a communicator that are on this node and can share memory with this rank. All ranks of the communicator
// must call this function. If the system does not allow shared memory, the result is only this rank.
std::vector<int> ranks_that_share(MPI_Comm communicator);

}  // namespace decompops::mpi

// Memory that the ranks of a node share: each has some of its own, which the others may read and write.

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

// The memory of one rank, as this process sees it: what the rank tells the others, then bytes for data.
class SharedMemory {
 public:
  // A new one, of this rank.
  SharedMemory();
  // That of another rank. No file stays open for it: a process has only so many.
  explicit SharedMemory(const MemoryFile& file);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;

  const MemoryFile& file() const { return file_; }
  // How many phases the rank has finished: what it does between two exchanges.
  std::atomic<std::uint64_t>& finished() const { return *static_cast<std::atomic<std::uint64_t>*>(memory_); }
  // Makes the memory of this rank hold so many bytes of data, all of them zero if it has to grow.
  void grow(Index bytes);
  // Maps the first `bytes` of another rank's memory. Returns false as long as that memory is smaller.
  bool find(Index bytes);
  std::byte* data() const;

 private:
  void map(int file, Index bytes);

  MemoryFile file_;
  void* memory_ = nullptr;
  Index bytes_ = 0;
};

// The ranks of a communicator that run on this node and can share memory with this one, all of which call this. None but this
// one where the system does not let them.
std::vector<int> ranks_that_share(MPI_Comm communicator);

}  // namespace decompops::mpi

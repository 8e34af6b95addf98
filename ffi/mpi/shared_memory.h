// Memory that the ranks of a node share. Each rank has its own memory, which the others may read and write.

#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/pieces.h"

namespace decompops::mpi {

// The address of a file in memory, by which every process of the same node can open it. An address owns nothing.
struct MemoryFile {
  pid_t process;
  int number;
};

// An open file. Only this object closes it.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

// The memory of one rank, as this process maps it: the counters of the rank, then bytes for data.
class SharedMemory {
 public:
  // New memory of this rank. Its file stays open as long as this object lives.
  SharedMemory();
  // A view of the memory of any rank. A view keeps no file open, because a process may open only a limited number of
  // files.
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

  const Descriptor own_;  // no file for a view
  const MemoryFile file_;
  void* memory_ = nullptr;
  Index bytes_ = 0;
};

// Which ranks of a communicator share memory.
struct Sharing {
  std::vector<int> ranks;    // the ranks that share memory with this rank, itself included
  std::string problem = {};  // why no other rank of this node shares memory with this rank; empty if they all do
};

// Finds out which ranks of a communicator are on this node, and whether they can share memory. All ranks of the
// communicator must call this function. If sharing does not work on one rank of a node, no rank of this node shares.
Sharing ranks_that_share(MPI_Comm communicator);

}  // namespace decompops::mpi

#include "mpi/node_memory.h"

#include <algorithm>

#include "mpi/check.h"
#include "mpi/tags.h"
#include "mpi/transfer.h"

namespace decompops::mpi {

NodeMemory::NodeMemory(Failures& failures, const std::vector<int>& node) : failures_(failures) {
  const Members& members = failures.members();
  for (int place = 0; place < members.size(); ++place) {
    const bool shares = std::find(node.begin(), node.end(), members.ranks[place]) != node.end();
    if (shares && place != members.place) sharing_.push_back(place);
  }
}

void NodeMemory::connect(MPI_Comm communicator) {
  if (sharing_.empty()) return;
  auto own = std::make_unique<SharedMemory>();
  const MemoryFile file = own->file();
  memories_.emplace(failures_.members().place, std::move(own));
  std::vector<MemoryFile> files(sharing_.size());
  Transfer transfer;
  transfer.requests.reserve(2 * files.size());
  transfer.peers = sharing_;
  transfer.peers.insert(transfer.peers.end(), sharing_.begin(), sharing_.end());
  for (std::size_t i = 0; i < files.size(); ++i) {
    check(MPI_Irecv(&files[i], sizeof(file), MPI_BYTE, sharing_[i], kMemory, communicator,
                    &transfer.requests.emplace_back()),
          "MPI_Irecv");
    ++transfer.receives;
  }
  for (int place : sharing_) {
    check(MPI_Isend(&file, sizeof(file), MPI_BYTE, place, kMemory, communicator, &transfer.requests.emplace_back()),
          "MPI_Isend");
  }
  transfer.wait(failures_);
  for (std::size_t i = 0; i < files.size(); ++i) {
    memories_.emplace(sharing_[i], std::make_unique<SharedMemory>(files[i]));
  }
}

SharedMemory& NodeMemory::own(Index bytes) {
  SharedMemory& memory = *memories_.at(failures_.members().place);
  memory.grow(bytes);
  bytes_ = std::max<Index>(bytes_, bytes);
  return memory;
}

SharedMemory& NodeMemory::at(int place, Index bytes) {
  SharedMemory& memory = *memories_.at(place);
  auto needed = [&] { return std::vector<int>{failures_.members().ranks[place]}; };
  failures_.wait_until([&] { return memory.find(bytes); }, needed, kForever);
  return memory;
}

void NodeMemory::finish_phase() {
  ++finished_;
  if (memories_.empty()) return;
  memories_.at(failures_.members().place)->finished().store(finished_, std::memory_order_release);
}

bool NodeMemory::wait_for(const std::vector<int>& indices, const std::vector<Neighbour>& neighbours, double longest) {
  auto has_come = [&](int index) {
    return memories_.at(neighbours[index].place)->finished().load(std::memory_order_acquire) >= finished_;
  };
  auto needed = [&] {
    std::vector<int> late;
    for (int index : indices) {
      if (!has_come(index)) late.push_back(failures_.members().ranks[neighbours[index].place]);
    }
    return late;
  };
  auto all_have_come = [&] { return std::all_of(indices.begin(), indices.end(), has_come); };
  return failures_.wait_until(all_have_come, needed, longest);
}

}  // namespace decompops::mpi

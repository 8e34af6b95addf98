// Tests of the memory that ranks share.

#include "mpi/node_memory.h"

#include "tests/ranks.h"

using namespace decompops;
using namespace decompops::mpi;

namespace {

std::vector<int> node() { return ranks_that_share(MPI_COMM_WORLD).ranks; }

}  // namespace

// Each rank writes to its own memory, and reads the memory of the others.
void test_node_memory() {
  AllRanks all;
  NodeMemory memory(all.failures, node());
  all.messages.connect();
  memory.connect(all.messages.communicator());
  if (!memory.sharing().empty()) {
    for (const Index bytes : {Index{100}, Index{100000}}) {
      auto value = [&](int place) { return static_cast<std::byte>(place + bytes % 7); };
      memory.own(bytes).data()[bytes - 1] = value(all.place);
      expect(memory.bytes() == bytes, "these are not the bytes");
      MPI_Barrier(MPI_COMM_WORLD);
      for (int place : memory.sharing()) {
        expect(memory.at(place, bytes).data()[bytes - 1] == value(place), "wrong cell");
      }
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// A rank waits until its neighbours have finished as many phases as itself.
void test_phases() {
  AllRanks all;
  NodeMemory memory(all.failures, node());
  all.messages.connect();
  memory.connect(all.messages.communicator());
  std::vector<Neighbour> neighbours;
  std::vector<int> indices;
  for (int place : memory.sharing()) {
    indices.push_back(static_cast<int>(neighbours.size()));
    neighbours.push_back({place, Received(Program{})});
  }
  expect(memory.wait_for(indices, neighbours, kForever), "nobody has finished a phase");
  MPI_Barrier(MPI_COMM_WORLD);
  const bool is_late = all.place == 0;
  if (!is_late) {
    memory.finish_phase();
    expect(!memory.wait_for(indices, neighbours, 0.01) || memory.sharing().empty(), "the first rank has not come");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (is_late) memory.finish_phase();
  expect(memory.wait_for(indices, neighbours, kForever), "a rank has not come");
  MPI_Barrier(MPI_COMM_WORLD);
}

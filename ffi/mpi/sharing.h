// Messages between the ranks of a node become memory that they share.

#pragma once

#include <functional>
#include <vector>

#include "cpu/program.h"

namespace decompops::mpi {

// The buffers of received cells, one after the other.
struct Received {
  explicit Received(const Program& program);
  std::array<Index, kBuffers> offset{};
  Index bytes = 0;
};

// A rank that this one writes to, or that writes to this one.
struct Neighbour {
  int place;  // in the mesh
  Received received;
};

// A program without the messages that its rank may write to where others read them: `Piece.owner` is the index of a neighbour
// there. The steps between two exchanges are a phase.
struct SharedProgram {
  Program program;
  std::vector<Neighbour> neighbours = {};
  Received own;
  // Which neighbours, by index, must have finished all phases before, when a phase begins: they have written what it reads,
  // and read what it overwrites.
  std::vector<std::vector<int>> awaited = {};
  Index messages = 0, sent_bytes = 0;  // what would be sent without shared memory
};

// `program` is that of the rank at `place`, `program_of` makes those of other places, and `sharing` are the places of the ranks
// on the same node.
SharedProgram share(Program program, const std::function<Program(int)>& program_of, int place,
                    const std::vector<int>& sharing);

}  // namespace decompops::mpi

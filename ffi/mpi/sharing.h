// Replaces messages between the ranks of a node by shared memory.

#pragma once

#include <functional>
#include <vector>

#include "cpu/program.h"

namespace decompops::mpi {

// Where the buffers of received cells lie in the memory of a rank: one buffer after the other.
struct Received {
  explicit Received(const Program& program);
  std::array<Index, kBuffers> offset{};
  Index bytes = 0;
};

// A rank to whose memory this rank writes, or that writes to the memory of this rank.
struct Neighbour {
  int place;  // in the mesh
  Received received;
};

// A program whose rank writes some messages directly to the place in memory where other ranks read them. In the pieces
// of these messages, `Piece::owner` is the index of a neighbour. The steps between two exchanges are a phase.
struct SharedProgram {
  Program program;
  std::vector<Neighbour> neighbours = {};
  Received own;
  // For each phase, the indices of the neighbours that must have finished all earlier phases before this phase begins.
  // These neighbours write the data that this phase reads, or read the data that it overwrites.
  std::vector<std::vector<int>> awaited = {};
  Index messages = 0, sent_bytes = 0;  // of the messages that shared memory replaces
};

// `program` is the program of the rank at `place`. `program_of` makes the program of another place. `sharing` are the
// places of the ranks on the same node.
SharedProgram share(Program program, const std::function<Program(int)>& program_of, int place,
                    const std::vector<int>& sharing);

}  // namespace decompops::mpi

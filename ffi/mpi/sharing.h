// Replaces messages between the ranks of a node by shared memory.

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

// A rank to whose memory this rank writes, or that writes to the memory of this rank.
struct Neighbour {
  int place;  // in the mesh
  Received received;
};

// A program in which the rank writes some messages directly to the place where others read them. For these,
// `Piece.owner` is the index of a neighbour. The steps between two exchanges are a phase.
struct SharedProgram {
  Program program;
  std::vector<Neighbour> neighbours = {};
  Received own;
  // The neighbours, by index, that must have finished all phases before when a phase begins: they write the data that
  // it reads, or read the data that it overwrites.
  std::vector<std::vector<int>> awaited = {};
  Index messages = 0, sent_bytes = 0;  // as they would be sent without shared memory
};

// `program` is the program of the rank at `place`, `program_of` makes the programs of other places, and `sharing` are
// the places of the ranks on the same node.
SharedProgram share(Program program, const std::function<Program(int)>& program_of, int place,
                    const std::vector<int>& sharing);

}  // namespace decompops::mpi

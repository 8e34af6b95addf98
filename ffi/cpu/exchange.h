// What travels between the ranks of a mesh.

#pragma once

#include "cpu/pieces.h"

namespace decompops {

// `peer` is a position in the mesh.
struct Message {
  int peer;
  Piece piece;
};

// Cells travel in `order` of grid axes, the last one fastest, whatever their strides on either side. Flat pieces need none.
struct Exchange {
  std::vector<Message> sends, receives;
  Index element;
  PerAxis<int> order{0};
};

}  // namespace decompops

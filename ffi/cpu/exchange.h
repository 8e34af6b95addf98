// The messages between the ranks of a mesh.

#pragma once

#include "cpu/pieces.h"

namespace decompops {

// `peer` is a position in the mesh.
struct Message {
  int peer;
  Piece piece;
};

// The messages that one rank sends and receives in one exchange. In a message, the grid axes are in `order`, and the
// last one is the fastest. The strides of sender and receiver do not change this. Flat pieces need no order.
struct Exchange {
  std::vector<Message> sends, receives;
  Index element;
  PerAxis<int> order{0};
};

}  // namespace decompops

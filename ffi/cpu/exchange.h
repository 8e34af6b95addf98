// The messages between the ranks of a mesh.

#pragma once

#include "cpu/pieces.h"

namespace decompops {

// `peer` is a position in the mesh.
struct Message {
  int peer;
  Piece piece;
};

// The messages that one rank sends and receives in one exchange. The cells of a message are in `order` of grid axes,
// the last one fastest, whatever the strides of sender and receiver are. Flat pieces need no order.
struct Exchange {
  std::vector<Message> sends, receives;
  Index element;
  PerAxis<int> order{0};
};

}  // namespace decompops

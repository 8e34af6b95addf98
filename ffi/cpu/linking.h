// Replaces messages between blocks in the same memory: the sender writes directly to the receiver's memory.

#pragma once

#include <vector>

#include "cpu/program.h"

namespace decompops {

// The steps of a program, cut at its exchanges.
struct Sections {
  explicit Sections(std::vector<Step> steps);

  std::vector<std::vector<Step>> steps{1};
  std::vector<Exchange> exchanges;
};

// Whether a rank may write the cells of `send` directly to the memory that `receive` describes, while the receiver
// carries out the steps `beside`. These steps must not read the buffer of `receive`.
bool may_redirect(const Message& send, const Message& receive, const std::vector<Step>& beside);

// Changes `steps` so that they write the cells of `send` to the memory that `receive` describes. In the changed pieces,
// `Piece::owner` is `owner`. A flat message may consist of several boxes, which are arranged in the same way at the
// receiver. A message that is not flat is one box.
void redirect(std::vector<Step>& steps, const Message& send, const Message& receive, int owner, Index element);

// Among the messages from or to `peer` in `messages`, the message with number `number`.
const Message& matching(const std::vector<Message>& messages, int peer, int number);

inline Index bytes_of(const Message& message, Index element) { return message.piece.region.volume() * element; }

}  // namespace decompops

// How messages become memory, between blocks that the same memory holds.

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

// Whether what a rank packs for `send` may be written to where `receive` finds it, while the receiver carries out the steps
// `beside`: it must not read that buffer meanwhile.
bool may_redirect(const Message& send, const Message& receive, const std::vector<Step>& beside);

// Has `steps` write what they pack for `send` to the memory of `owner` (`Piece`) that `receive` describes. Several boxes may be
// packed for a flat message, and lie in the same way where it is received. Else the message is a box itself.
void redirect(std::vector<Step>& steps, const Message& send, const Message& receive, int owner, Index element);

// The message in `messages` that is number `number` of those from or to `peer`.
const Message& matching(const std::vector<Message>& messages, int peer, int number);

inline Index bytes_of(const Message& message, Index element) { return message.piece.region.volume() * element; }

}  // namespace decompops

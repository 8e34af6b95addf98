#include "cpu/linking.h"

#include <algorithm>

namespace decompops {
namespace {

// Calls `body(field, is_written)` for each field that a pass of a step reads or writes.
template <class AnyStep, class Body>
void for_fields(AnyStep& step, const Body& body) {
  if (auto* copy = std::get_if<Copy>(&step)) {
    body(copy->from, false);
    body(copy->to, true);
  } else if (auto* sweep = std::get_if<Sweep>(&step)) {
    for (auto& pass : sweep->passes) {
      body(pass.from, false);
      body(pass.to, true);
    }
  } else if (auto* measure = std::get_if<Measure>(&step)) {
    body(measure->from, false);
    body(measure->to, true);
  } else {
    throw Failure("exchanges of pieces are for messages");
  }
}

bool reads(const std::vector<Step>& steps, Buffer buffer) {
  bool found = false;
  for (const Step& step : steps) {
    for_fields(step, [&](const Field& field, bool is_written) {
      for (const Piece& piece : field.pieces) found = found || (!is_written && piece.buffer == buffer);
    });
  }
  return found;
}

}  // namespace

Sections::Sections(std::vector<Step> all) {
  for (Step& step : all) {
    if (auto* exchange = std::get_if<Exchange>(&step)) {
      exchanges.push_back(std::move(*exchange));
      steps.emplace_back();
    } else {
      steps.back().push_back(std::move(step));
    }
  }
}

bool may_redirect(const Message& send, const Message& receive, const std::vector<Step>& beside) {
  return send.piece.buffer == kSend && !reads(beside, receive.piece.buffer);
}

void redirect(std::vector<Step>& steps, const Message& send, const Message& receive, int owner, Index element) {
  const Index low = send.piece.offset, high = low + bytes_of(send, element);
  const bool is_flat = send.piece.region.axes() == receive.piece.region.axes() && send.piece.region.axes() == 2;
  for (Step& step : steps) {
    for_fields(step, [&](Field& field, bool is_written) {
      for (Piece& piece : field.pieces) {
        if (!is_written || piece.owner >= 0 || piece.buffer != kSend) continue;
        if (piece.offset < low || piece.offset >= high) continue;
        piece.buffer = receive.piece.buffer;
        piece.offset += receive.piece.offset - low;
        piece.narrow.exponents += receive.piece.offset - low;
        if (!is_flat) piece.stride = receive.piece.stride;
        piece.owner = owner;
      }
    });
  }
}

const Message& matching(const std::vector<Message>& messages, int peer, int number) {
  for (const Message& message : messages) {
    if (message.peer == peer && number-- == 0) return message;
  }
  throw Failure("a message has no counterpart");
}

}  // namespace decompops

#include "native/ensemble.h"

#include <algorithm>

namespace decompops::native {
namespace {

// The steps of a program, cut at its exchanges.
struct Sections {
  std::vector<std::vector<Step>> steps{1};
  std::vector<Exchange> exchanges;
};

Sections sections_of(std::vector<Step>& steps) {
  Sections sections;
  for (Step& step : steps) {
    if (auto* exchange = std::get_if<Exchange>(&step)) {
      sections.exchanges.push_back(std::move(*exchange));
      sections.steps.emplace_back();
    } else {
      sections.steps.back().push_back(std::move(step));
    }
  }
  steps.clear();
  return sections;
}

// Calls `body(field, is_written)` for what each pass of a step reads and writes.
template <class Body>
void for_fields(Step& step, const Body& body) {
  if (auto* copy = std::get_if<Copy>(&step)) {
    body(copy->from, false);
    body(copy->to, true);
  } else if (auto* sweep = std::get_if<Sweep>(&step)) {
    for (Sweep::Pass& pass : sweep->passes) {
      body(pass.from, false);
      body(pass.to, true);
    }
  } else {
    throw Failure("exchanges of pieces are for ranks in different processes");
  }
}

bool reads(std::vector<Step>& steps, Buffer buffer) {
  bool found = false;
  for (Step& step : steps) {
    for_fields(step, [&](const Field& field, bool is_written) {
      for (const Piece& piece : field.pieces) found = found || (!is_written && piece.buffer == buffer);
    });
  }
  return found;
}

Index bytes_of(const Message& message, Index element) { return message.piece.region.volume() * element; }

// Has `steps` write what they pack for `send` to the memory of the device at `place` that `receive` describes. Several boxes
// may be packed for a flat message, and lie in the same way where it is received. Else the message is a box itself.
void redirect(std::vector<Step>& steps, const Message& send, const Message& receive, int place, Index element) {
  const Index low = send.piece.offset, high = low + bytes_of(send, element);
  const bool is_flat = send.piece.region.axes() == receive.piece.region.axes() && send.piece.region.axes() == 2;
  for (Step& step : steps) {
    for_fields(step, [&](Field& field, bool is_written) {
      for (Piece& piece : field.pieces) {
        if (!is_written || piece.owner >= 0 || piece.buffer != kSend) continue;
        if (piece.offset < low || piece.offset >= high) continue;
        piece.buffer = receive.piece.buffer;
        piece.offset += receive.piece.offset - low;
        if (!is_flat) piece.stride = receive.piece.stride;
        piece.owner = place;
      }
    });
  }
}

// The message in `receives` that is number `number` of those from `peer`.
const Message& matching(const std::vector<Message>& receives, int peer, int number) {
  for (const Message& message : receives) {
    if (message.peer == peer && number-- == 0) return message;
  }
  throw Failure("a message has no receiver");
}

}  // namespace

Ensemble link(std::vector<Program> programs) {
  std::vector<Sections> sections;
  for (Program& program : programs) sections.push_back(sections_of(program.steps));
  const int places = static_cast<int>(programs.size());
  const std::size_t exchanges = sections[0].exchanges.size();
  Ensemble ensemble;
  std::vector<bool> packs(places);
  for (std::size_t i = 0; i < exchanges; ++i) {
    Phase copies(places);
    for (int sender = 0; sender < places; ++sender) {
      const Exchange& exchange = sections[sender].exchanges[i];
      std::vector<int> sent(places);
      for (const Message& send : exchange.sends) {
        Sections& other = sections[send.peer];
        const Message& receive = matching(other.exchanges[i].receives, sender, sent[send.peer]++);
        ++ensemble.messages;
        ensemble.sent_bytes += bytes_of(send, exchange.element);
        // The receiver may still read that buffer in this phase; then the message is copied there after it.
        if (send.piece.buffer == kSend && !reads(other.steps[i], receive.piece.buffer)) {
          redirect(sections[sender].steps[i], send, receive, send.peer, exchange.element);
          continue;
        }
        packs[sender] = packs[sender] || send.piece.buffer == kSend;
        Piece from = send.piece;
        from.owner = sender;
        from.region = receive.piece.region;
        const bool stream = from.region.volume() * exchange.element >= kStreamBytes;
        copies[send.peer].push_back(Copy{
            {from.region, {from}}, {from.region, {receive.piece}}, exchange.element, false, stream, Number::other});
      }
    }
    Phase phase;
    for (Sections& own : sections) phase.push_back(std::move(own.steps[i]));
    ensemble.phases.push_back(std::move(phase));
    const bool is_empty = std::all_of(copies.begin(), copies.end(), [](const auto& steps) { return steps.empty(); });
    if (!is_empty) ensemble.phases.push_back(std::move(copies));
  }
  Phase last;
  for (Sections& own : sections) last.push_back(std::move(own.steps[exchanges]));
  ensemble.phases.push_back(std::move(last));
  for (int place = 0; place < places; ++place) {
    if (!packs[place]) programs[place].bytes[kSend] = 0;
  }
  ensemble.programs = std::move(programs);
  return ensemble;
}

}  // namespace decompops::native

// The compilation of exchanges: for transposes, and for halos.

#include <algorithm>

#include "cpu/compiler.h"

namespace decompops {

// --- Moves.

// The axis that is sharded in `before` but not in `after`, or -1.
int Compiler::whole_after(const Blocks& before, const Blocks& after) {
  for (int axis = 0; axis < before.ndim(); ++axis) {
    if (before.parts[axis] > 1 && after.parts[axis] == 1) return axis;
  }
  return -1;
}

bool Compiler::moves_nothing(const Stage& stage) {
  return stage.kind == Stage::Kind::joined ||
         (stage.kind == Stage::Kind::move && whole_after(stage.before, stage.after) < 0);
}

// Whether later stages change nothing but the order of storage.
bool Compiler::is_last(const Stage& stage) const {
  return std::all_of(&stage + 1, plan_.stages.data() + plan_.stages.size(), moves_nothing);
}

void Compiler::move(const Stage& stage) {
  const int gathered = whole_after(stage.before, stage.after), divided = whole_after(stage.after, stage.before);
  if (gathered < 0) return;  // only the storage order changes, which costs nothing until the result is written
  if (pending_.empty() && plan_.wire == Wire::none) {
    move_cells(stage, gathered, divided);
  } else {
    move_packed(stage);
  }
  gathered_ = gathered;
}

// Transforms write their results as messages, and the next transforms read received messages. Cells that are sent in a
// narrower type are also written as messages, because this converts them.
void Compiler::move_packed(const Stage& stage) {
  Buffer receive = free_of(current_, in_slot(kReceive));
  used_[in_slot(kSend)] = 0;
  if (ends_pieces(stage)) {
    receive = last_received_;
  } else {
    used_[receive] = 0;
  }
  const Region cells = pending_.empty() ? intersection(current_.region, valid(stage.before)) : result_region();
  const Handed handed = hand_over(stage, cells, last_element(), {in_slot(kSend), receive, receive});
  fill(handed.out, stage);
  communicate(handed.exchange);
  current_ = handed.in;
  order_ = natural(ndim_);
}

Compiler::Handed Compiler::hand_over(const Stage& stage, const Region& before, Index element, const Buffers& buffers) {
  const int gathered = whole_after(stage.before, stage.after), divided = whole_after(stage.after, stage.before);
  const Handover cells{stage, gathered, divided};
  const int line = stage.before.mesh_axis[gathered];
  const Index mine = place_.coordinate(line);
  const Index stored = element / narrow_ratio();
  Handed handed{{before, {}}, {block(stage.after), {}}, {{}, {}, stored}};
  auto arrives = [&](Piece piece, Index sender) {
    piece.region = cells.arrived(piece.region, sender, mine);
    handed.in.pieces.push_back(piece);
  };
  for (Index part = 0; part < stage.before.parts[gathered]; ++part) {
    const Region leaving = cells.leaving(before, mine, part);
    const Region coming = cells.leaving(before, part, mine);
    if (part == mine) {
      // Cells that stay on this rank are written to the place where they would arrive as a message.
      if (leaving.empty()) continue;
      handed.out.pieces.push_back(next(buffers.stay, leaving, element));
      arrives(handed.out.pieces.back(), part);
      continue;
    }
    const int peer = place_.moved(line, part);
    auto message = [&](const Piece& piece) {
      const Index start = piece.narrow.wire == Wire::f16 ? piece.narrow.exponents : piece.offset;
      return Message{peer, flat(piece.buffer, start, (piece.offset - start + span(piece, element)) / stored)};
    };
    if (!leaving.empty()) {
      handed.out.pieces.push_back(next(buffers.send, leaving, element));
      handed.exchange.sends.push_back(message(handed.out.pieces.back()));
    }
    if (!coming.empty()) {
      const Piece piece = next(buffers.receive, coming, element);
      handed.exchange.receives.push_back(message(piece));
      arrives(piece, part);
    }
  }
  handed.in.pieces = merged(handed.in.pieces, element);
  return handed;
}

// A piece for the cells of `region`, after the messages that `buffer` already holds. In float16, the exponents come
// directly before the cells, which begin with a cache line.
Piece Compiler::next(Buffer buffer, const Region& region, Index element) {
  const Index head = plan_.wire == Wire::f16 ? region.count(0) * static_cast<Index>(sizeof(Exponent)) : 0;
  const Index start = used_[buffer] + whole_cache_lines(head), ratio = narrow_ratio();
  Piece piece = spaced(buffer, start, region, element / ratio);
  piece.narrow = {plan_.wire, ratio, start - head};
  used_[buffer] = start + whole_cache_lines(span(piece, element));
  reserve(buffer, used_[buffer]);
  return piece;
}

// The exchange of a piece takes two steps: one starts it, and one finishes it. Steps of another piece run in between.
void Compiler::communicate(const Exchange& exchange) {
  if (slot_ == 0) return program_.steps.push_back(exchange);
  program_.steps.push_back(Start{exchange});
  program_.steps.push_back(Finish{});
}

// Whether all ranks that exchange cells in this move are on one node, where they write to each other's memory.
bool Compiler::is_on_node(const Stage& stage, int gathered) const {
  const int line = stage.before.mesh_axis[gathered];
  bool all = slot_ == 0;  // pieces are exchanged by messages
  for (Index part = 0; part < stage.before.parts[gathered]; ++part) {
    all = all && std::find(node_.begin(), node_.end(), place_.moved(line, part)) != node_.end();
  }
  return all;
}

// Messages are sent from the memory where the cells are, and received in the memory where they are needed. A sender
// packs cells only if its storage order would scatter the rows of the message. A receiver unpacks cells only if its own
// storage order would scatter these rows.
// The ranks of a node instead always pack cells, because they pack them into the memory of the receiver, which then
// reads the cells there.
void Compiler::move_cells(const Stage& stage, int gathered, int divided) {
  const Handover cells{stage, gathered, divided};
  const int line = stage.before.mesh_axis[gathered], fastest = order_.back() + 1;
  const Index mine = place_.coordinate(line);
  const bool last = is_last(stage);
  const Region before = intersection(current_.region, valid(stage.before)), after = block(stage.after);
  // If a piece is exchanged, or all ranks are on one node, the next stage reads the received cells in the receive buffer.
  // A whole block is otherwise received in one array. A block that still has cells in a receive buffer from an earlier
  // exchange is always received in one array, because the next exchange needs a free receive buffer.
  const bool on_node = is_on_node(stage, gathered);
  const bool again = lies_in(current_, in_slot(kReceive)) || lies_in(current_, in_slot(kReceive2));
  Piece target{};
  if (last && !on_node) target = cut(result()).pieces[0];
  if (!last && ((slot_ == 0 && !on_node) || again)) target = dense(scratch(after, current_), 0, after, order_);
  const bool places = target.stride[fastest] == 1;
  const Buffer receive = free_of(current_, in_slot(kReceive));
  auto sends_from = [&](const Region& region) {
    return !on_node && current_.pieces.size() == 1 && current_.pieces[0].stride[fastest] == 1 &&
           intersection(current_.pieces[0].region, region).volume() == region.volume();
  };
  Exchange exchange{{}, {}, element_, order_};
  Field packed{before, {}}, own{after, {}}, in{after, {}};
  std::vector<Region> filled;
  Index sent = 0, received = 0;
  for (Index part = 0; part < stage.before.parts[gathered]; ++part) {
    const Region leaving = cells.leaving(before, mine, part);
    const Region coming = cells.leaving(before, part, mine);
    const Region place = cells.arrived(coming, part, mine);
    if (part == mine) {
      for (Piece piece : clipped(current_, leaving, element_).pieces) {
        piece.region = cells.arrived(piece.region, part, mine);
        own.pieces.push_back(piece);
      }
      continue;
    }
    const int peer = place_.moved(line, part);
    if (!leaving.empty()) {
      const bool direct = sends_from(leaving);
      const Piece piece =
          direct ? placed(current_.pieces[0], leaving, element_) : dense(in_slot(kSend), sent, leaving, order_);
      if (!direct) {
        packed.pieces.push_back(piece);
        sent += whole_cache_lines(leaving.volume() * element_);
      }
      exchange.sends.push_back({peer, piece});
    }
    if (!coming.empty()) {
      Piece piece = places ? placed(target, place, element_) : dense(receive, received, coming, order_);
      piece.region = place;
      if (!places) received += whole_cache_lines(coming.volume() * element_);
      exchange.receives.push_back({peer, piece});
      in.pieces.push_back(piece);
      filled.push_back(place);
    }
  }
  reserve(in_slot(kSend), sent);
  reserve(receive, received);
  if (!packed.pieces.empty()) copy(packed);
  if (!places) {
    communicate(exchange);
    in.pieces.insert(in.pieces.end(), own.pieces.begin(), own.pieces.end());
    current_ = in;
    return;
  }
  // Copies the cells that stay on this rank, and writes zeros where no cells arrive.
  Field rest{after, {}};
  for (const Region& region : difference(after, filled)) rest.pieces.push_back(clipped(target, region, element_));
  current_ = own;
  copy(rest);
  communicate(exchange);
  current_ = {after, {target}};
}

// --- Halos.

void Compiler::extend(std::size_t index) {
  const Stage& stage = plan_.stages[index];
  // Consecutive extensions all write into the array of the last extension, so the block is copied only once.
  std::size_t last = index;
  while (last + 1 < plan_.stages.size() && plan_.stages[last + 1].kind == Stage::Kind::extend &&
         !plan_.stages[last + 1].transposed) {
    ++last;
  }
  const Blocks &here = stage.after, &whole = plan_.stages[last].after;
  Buffer buffer = last + 1 == plan_.stages.size() ? kResult : scratch(block(whole), current_);
  Region inner = block(here), placed = inner;
  for (int axis = 0; axis < ndim_; ++axis) {
    placed = placed.shifted(axis + 1, whole.halo[axis][0] - here.halo[axis][0]);
  }
  Piece piece = clipped(dense(buffer, 0, block(whole), whole.order), placed, element_);
  piece.region = inner;
  exchange_halo(stage, {inner, {piece}});
}

// The transpose of an extension: every cell of the halo is added to the cell of which it is a copy.
void Compiler::reduce(std::size_t index) {
  const Stage& stage = plan_.stages[index];
  Region inner = block(stage.after);
  bool last = index + 1 == plan_.stages.size();
  const Buffer buffer = last ? kResult : scratch(inner, current_);
  Piece piece = dense(buffer, 0, inner, last ? plan_.target.order : natural(ndim_));
  exchange_halo(stage, {inner, {piece}});
}

void Compiler::exchange_halo(const Stage& stage, const Field& to) {
  const Buffer receive = free_of(current_, kReceive);
  Halo halo = halo_of(stage, place_, current_, to.region, element_, receive);
  reserve(kSend, halo.send_bytes);
  reserve(receive, halo.receive_bytes);
  copy(halo.outgoing);
  program_.steps.push_back(halo.exchange);
  current_ = halo.arrived;
  copy(to, stage.transposed);
  current_ = to;
  order_ = natural(ndim_);
}

void Compiler::crop(const Stage& stage) {
  if (stage.transposed) {
    for (int axis = 0; axis < ndim_; ++axis) current_ = shifted(current_, axis + 1, stage.after.halo[axis][0]);
    current_.region = block(stage.after);
    return;
  }
  Region core = block(stage.before);
  for (int axis = 0; axis < ndim_; ++axis) {
    core.lo[axis + 1] = stage.before.halo[axis][0];
    core.hi[axis + 1] -= stage.before.halo[axis][1];
  }
  current_ = clipped(current_, core, element_);
  for (int axis = 0; axis < ndim_; ++axis) current_ = shifted(current_, axis + 1, -stage.before.halo[axis][0]);
  current_.region = block(stage.after);
}

}  // namespace decompops

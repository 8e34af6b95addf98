// Compiles a block in pieces, so that one piece is exchanged while another is transformed.

#include <algorithm>
#include <deque>
#include <utility>

#include "cpu/compiler.h"

namespace decompops {
namespace {

using Steps = std::vector<Step>;

// Splits the steps of a piece after each step that starts an exchange.
std::vector<Steps> phases_of(Steps steps) {
  std::vector<Steps> phases(1);
  for (Step& step : steps) {
    const bool starts = std::holds_alternative<Start>(step);
    phases.back().push_back(std::move(step));
    if (starts) phases.emplace_back();
  }
  return phases;
}

// Interleaves the pieces, two at a time. On all ranks, exchanges finish in the order in which they start.
void append_in_turns(const std::vector<std::vector<Steps>>& pieces, Steps& steps) {
  std::deque<std::pair<std::size_t, std::size_t>> under_way;  // piece and phase
  for (std::size_t next = 0; next < pieces.size() || !under_way.empty();) {
    std::pair<std::size_t, std::size_t> now{next, 0};
    if (under_way.size() < 2 && next < pieces.size()) {
      ++next;
    } else {
      now = under_way.front();
      under_way.pop_front();
    }
    const auto& [piece, phase] = now;
    steps.insert(steps.end(), pieces[piece][phase].begin(), pieces[piece][phase].end());
    if (phase + 1 < pieces[piece].size()) under_way.push_back({piece, phase + 1});
  }
}

}  // namespace

// Compiles all pieces. Stage `first` cuts the block into pieces. Returns the index of the stage that joins the pieces.
std::size_t Compiler::add_pieces(std::size_t first) {
  std::size_t last = first;
  while (plan_.stages[last].kind != Stage::Kind::joined) ++last;
  const std::size_t exchange = first_exchange(first);
  pad();
  if (!pending_.empty()) {
    if (exchange > 0) {
      const Field out = hand_over_pieces(first, current_);
      fill(out, plan_.stages[exchange]);
    } else {
      settle();
    }
  }
  const std::vector<Handed> handed = std::exchange(handed_, {});
  const State start = *this;
  Steps steps = std::exchange(program_.steps, {});
  last_received_ = free_of(start.current_, kReceive);
  used_[last_received_] = 0;
  std::vector<std::vector<Steps>> pieces;
  const std::vector<Cut> cuts = cuts_of(plan_.stages[first]);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    static_cast<State&>(*this) = start;
    cut_ = cuts[i];
    slot_ = slot_of(i);
    std::size_t stage = first + 1;
    if (handed.empty()) {
      current_ = cut(current_);
    } else {
      communicate(handed[i].exchange);
      current_ = handed[i].in;
      order_ = natural(ndim_);
      gathered_ = whole_after(plan_.stages[exchange].before, plan_.stages[exchange].after);
      stage = exchange + 1;
    }
    for (; stage < last; ++stage) add(stage);
    end_piece(i, last, start, !handed.empty());
    pieces.push_back(phases_of(std::exchange(program_.steps, {})));
  }
  cut_ = {};
  slot_ = 0;
  current_ = joined_;
  order_ = natural(ndim_);
  append_in_turns(pieces, steps);
  program_.steps = std::move(steps);
  return last;
}

// Writes the results of a piece to the memory that all pieces share. If the piece ends with an exchange, its cells stay
// in the receive buffer.
void Compiler::end_piece(std::size_t piece, std::size_t last, const State& start, bool handed) {
  pad();
  const bool stays = pending_.empty() && lies_in(current_, last_received_);
  if (stays) {
    if (piece == 0) joined_ = {decompops::block(plan_.stages[last].after, batch_), {}};
    joined_.pieces.insert(joined_.pieces.end(), current_.pieces.begin(), current_.pieces.end());
    return;
  }
  if (piece == 0) joined_ = target_of_pieces(last, start, handed);
  const Field to = cut(joined_);
  if (!pending_.empty()) return flush(&to);
  if (!has_result()) copy(to);
}

// Where pieces write their results: to the result of the plan, into the messages of the next pieces, or to scratch
// memory. If `handed`, they cannot write messages of the next pieces, because the buffers hold their own messages.
Field Compiler::target_of_pieces(std::size_t last, const State& start, bool handed) {
  const Stage& end = plan_.stages[last];
  if (is_last(end)) return result();
  const bool more = last + 1 < plan_.stages.size() && plan_.stages[last + 1].kind == Stage::Kind::pieces;
  // A piece cannot choose an exponent for a message that other pieces write, too.
  const bool shares = plan_.wire != Wire::f16;
  if (more && !handed && shares && !pending_.empty() && first_exchange(last + 1) > 0) {
    return hand_over_pieces(last + 1, start.current_);
  }
  const Region whole = decompops::block(end.after, batch_);
  const Buffer buffer = free_of(start.current_, kScratch);
  reserve(buffer, whole.volume() * last_element());
  return {whole, {dense(buffer, 0, whole)}};
}

// Returns a field in the buffers of messages. Results that are written to this field are the messages of the first
// exchange of the next pieces. The field does not overlap `beside`, from which the results are computed.
Field Compiler::hand_over_pieces(std::size_t first, const Field& beside) {
  const Stage& stage = plan_.stages[first_exchange(first)];
  const Region before = decompops::block(stage.before, batch_);
  const Buffer stay = free_of(beside, kReceive);
  const Cut outer_cut = cut_;
  const int outer_slot = slot_;
  Field out{before, {}};
  used_[kSend] = used_[stay] = 0;
  const std::vector<Cut> cuts = cuts_of(plan_.stages[first]);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    cut_ = cuts[i];
    slot_ = slot_of(i);
    used_[in_slot(kReceive)] = 0;
    handed_.push_back(hand_over(stage, cut(before), last_element(), {kSend, in_slot(kReceive), stay}));
    const Field& piece = handed_.back().out;
    out.pieces.insert(out.pieces.end(), piece.pieces.begin(), piece.pieces.end());
  }
  cut_ = outer_cut;
  slot_ = outer_slot;
  return out;
}

std::vector<Compiler::Cut> Compiler::cuts_of(const Stage& opening) const {
  const int axis = opening.axis + 1;
  const Index cells = axis == 0 ? batch_ : opening.before.core(opening.axis), count = std::min(opening.count, cells);
  std::vector<Cut> cuts;
  for (Index i = 0, low = 0; i < count; ++i) {
    const Index length = cells / count + (i < cells % count);
    cuts.push_back({axis, low, low + length});
    low += length;
  }
  return cuts;
}

// Stage `first` cuts the block into pieces. Returns the index of the exchange with which these pieces begin, or 0 if
// they begin with a stage of another kind.
std::size_t Compiler::first_exchange(std::size_t first) const {
  std::size_t index = first + 1;
  while (plan_.stages[index].kind == Stage::Kind::move && moves_nothing(plan_.stages[index])) ++index;
  return plan_.stages[index].kind == Stage::Kind::move ? index : 0;
}

// Whether the pieces have nothing left to compute or exchange after the exchange `stage`, while later stages of the
// plan still move or transform cells.
bool Compiler::ends_pieces(const Stage& stage) const {
  if (slot_ == 0 || is_last(stage)) return false;
  const Stage* later = &stage + 1;
  while (later->kind != Stage::Kind::joined && moves_nothing(*later)) ++later;
  return later->kind == Stage::Kind::joined;
}

Region Compiler::cut(Region region) const {
  if (cut_.axis < 0) return region;
  return intersection(region, region.with(cut_.axis, cut_.low, cut_.high));
}

Field Compiler::cut(const Field& field) const {
  const Region region = cut(field.region);
  return {region, clipped(field, region, last_element()).pieces};
}

}  // namespace decompops

#include "mpi/program.h"

#include <algorithm>

namespace decompops::mpi {
namespace {

// More than this does not stay in cache until it is read again.
constexpr Index kStreamBytes = Index{1} << 22;
// What of a plane of intermediate results stays in cache (a share of the second level's size on today's processors).
constexpr Index kPlaneBytes = Index{1} << 20;

class Compiler {
 public:
  Compiler(const Plan& plan, Index batch, Index element, Number number, int place)
      : plan_(plan),
        batch_(batch),
        element_(element),
        number_(number),
        real_bytes_(number == Number::f64 || number == Number::c128 ? 8 : 4),
        complex_(number == Number::c64 || number == Number::c128),
        ndim_(plan.source.ndim()),
        place_(plan.mesh, place),
        order_(plan.source.order) {
    current_ = {block(plan.source), {dense(kInput, 0, block(plan.source), plan.source.order)}};
  }

  Program run() {
    const auto& stages = plan_.stages;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const Stage& stage = stages[i];
      if (!stage.transforms() && stage.kind != Stage::Kind::move) settle();
      add(stage, i);
    }
    finish();
    return std::move(program_);
  }

 private:
  void add(const Stage& stage, std::size_t i) {
    switch (stage.kind) {
      case Stage::Kind::move: return move(stage);
      case Stage::Kind::fourier:
      case Stage::Kind::waves: return transform(stage);
      case Stage::Kind::extend: return stage.transposed ? reduce(i) : extend(i);
      case Stage::Kind::crop: return crop(stage);
      case Stage::Kind::clear: current_ = clipped(current_, valid(stage.before), element_); return;
    }
    throw Failure("the kernels have no such stage");  // `decode` has refused it
  }

  Region block(const Blocks& layout) const { return mpi::block(layout, batch_); }
  Region valid(const Blocks& layout) const { return mpi::valid(layout, batch_, place_); }

  void reserve(Buffer buffer, Index bytes) { program_.bytes[buffer] = std::max(program_.bytes[buffer], bytes); }

  void copy(const Field& to, bool sum = false) {
    const bool stream = to.region.volume() * element_ >= kStreamBytes;
    program_.steps.push_back(Copy{current_, to, element_, sum, stream, number_});
  }

  // --- Transforms: collected until it is known where their results go.

  void transform(const Stage& stage) {
    using Kind = Transform::Kind;
    std::vector<int> axes = stage.axes;
    const int halved = axes.back();
    // A real transform begins with the halved axis, its inverse ends with it. Otherwise the axis that has just become
    // whole comes first: its lines are put together from the pieces received while they are transformed.
    if (stage.transform.kind == Kind::r2c) {
      std::rotate(axes.begin(), axes.end() - 1, axes.end());
    } else if (stage.transform.kind != Kind::c2r) {
      auto first = std::find(axes.begin(), axes.end(), gathered_);
      if (first != axes.end()) std::rotate(axes.begin(), first, first + 1);
    }
    for (int axis : axes) {
      Transform lines = stage.transform;
      if (axis != halved && lines.kind != Kind::r2r) lines = {Kind::c2c, stage.transform.sign};
      const Blocks& points = stage.transform.kind == Kind::c2r ? stage.after : stage.before;
      pending_.push_back({axis + 1, lines, points.lengths[axis], lines.kind == Kind::r2r && complex_, 1.0});
      if (lines.kind != Kind::r2r) complex_ = lines.kind != Kind::c2r;
    }
    if (!scaled_) pending_.front().scale = plan_.scale;
    scaled_ = true;
  }

  // The last results go to `to`, or to scratch memory.
  void flush(const Field* to) {
    Sweep sweep{{}, false, real_bytes_};
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      const Lines& lines = pending_[i];
      bool last = i + 1 == pending_.size();
      element_ = element_after(lines);
      Region region = current_.region.with(lines.axis, 0, lines.cells_out());
      Field result = last ? (to ? *to : in_scratch(region, sweep)) : between(region, lines, pending_[i + 1], sweep);
      const bool stream = !sweep.planes || last ? region.volume() * element_ >= kStreamBytes : false;
      sweep.passes.push_back({lines, current_, result, stream});
      current_ = result;
      // Two passes share a plane; a third one starts again.
      if (sweep.planes && sweep.passes.size() < 2 && !last) continue;
      program_.steps.push_back(sweep);
      sweep.passes.clear();
      sweep.planes = false;
    }
    pending_.clear();
  }

  // Where the results of one pass wait for the next: one plane if that fits into the cache, else the whole block.
  Field between(const Region& region, const Lines& lines, const Lines& next, Sweep& sweep) {
    // Lines are taken side by side along the last axis, those along it side by side along the one before: only planes of
    // both hold whole tiles of both passes.
    Region plane = region;
    for (int axis = 0; axis < ndim_ - 1; ++axis) plane = plane.with(axis, 0, 1);
    const bool last_two = lines.axis != next.axis && std::min(lines.axis, next.axis) == ndim_ - 1;
    if (last_two && sweep.passes.empty() && plane.volume() * element_ <= kPlaneBytes) {
      sweep.planes = true;
      reserve(kPlane, plane.volume() * element_);
      Piece piece = dense(kPlane, 0, plane);
      for (int axis = 0; axis < ndim_ - 1; ++axis) piece.stride[axis] = 0;  // every plane lies in the same memory
      piece.region = region;
      return {region, {piece}};
    }
    return in_scratch(region, sweep);
  }

  // The first pass over planes reads the next plane after the second one has written the last, so what it reads from is
  // not free yet.
  Field in_scratch(const Region& region, const Sweep& sweep) {
    const Field& read = sweep.passes.empty() ? current_ : sweep.passes.front().from;
    return {region, {dense(scratch(region, read), 0, region)}};
  }

  // What follows needs the results of pending transforms in one piece.
  void settle() {
    if (pending_.empty()) return;
    flush(nullptr);
    order_ = natural(ndim_);
  }

  // Scratch memory that `read` does not lie in.
  Buffer scratch(const Region& region, const Field& read) {
    const Buffer buffer = unread(kScratch, kScratch2, read);
    reserve(buffer, region.volume() * element_);
    return buffer;
  }

  // Of two buffers the one that nothing is read from any more: what arrives must not overwrite what an earlier exchange has
  // brought.
  static Buffer unread(Buffer first, Buffer second, const Field& read) {
    auto taken = [first](const Piece& piece) { return piece.buffer == first; };
    return std::any_of(read.pieces.begin(), read.pieces.end(), taken) ? second : first;
  }

  // The block after the pending transforms.
  Region result_region() const {
    Region region = current_.region;
    for (const Lines& lines : pending_) region = region.with(lines.axis, 0, lines.cells_out());
    return region;
  }

  // The bytes of a cell after a transform.
  Index element_after(const Lines& lines) const {
    const Transform::Kind kind = lines.transform.kind;
    return real_bytes_ * (kind == Transform::Kind::c2r || (kind == Transform::Kind::r2r && !lines.complex) ? 1 : 2);
  }

  // --- Moves.

  // The axis that is divided in `before` only, or -1.
  static int whole_after(const Blocks& before, const Blocks& after) {
    for (int axis = 0; axis < before.ndim(); ++axis) {
      if (before.parts[axis] > 1 && after.parts[axis] == 1) return axis;
    }
    return -1;
  }

  // Whether the cells are where they must be after this stage, though others may follow.
  bool is_last(const Stage& stage) const {
    auto moves_nothing = [](const Stage& later) {
      return later.kind == Stage::Kind::move && whole_after(later.before, later.after) < 0;
    };
    return std::all_of(&stage + 1, plan_.stages.data() + plan_.stages.size(), moves_nothing);
  }

  void move(const Stage& stage) {
    const int gathered = whole_after(stage.before, stage.after), divided = whole_after(stage.after, stage.before);
    if (gathered < 0) return;  // only the order of storage changes, and that is free until the result is written
    if (pending_.empty()) {
      move_cells(stage, gathered, divided);
    } else {
      move_transformed(stage, gathered, divided);
    }
    gathered_ = gathered;
  }

  // The results of transforms are written as messages, and the next transforms read what arrives.
  void move_transformed(const Stage& stage, int gathered, int divided) {
    const Handover cells{stage, gathered, divided};
    const int line = stage.before.mesh_axis[gathered];
    const Index mine = place_.coordinate(line), element = element_after(pending_.back());
    const Region before = result_region();
    const Buffer receiving = unread(kReceive, kReceive2, current_);
    Exchange exchange{{}, {}, element};
    Field out{before, {}}, in{block(stage.after), {}};
    Index sent = 0, received = 0;
    for (Index part = 0; part < stage.before.parts[gathered]; ++part) {
      // What stays here is written where it would arrive.
      const bool stays = part == mine;
      const Region leaving = cells.leaving(before, mine, part);
      const Piece outgoing = spaced(stays ? receiving : kSend, stays ? received : sent, leaving, element);
      Piece incoming = spaced(receiving, received, cells.leaving(before, part, mine), element);
      const Index out_bytes = span(outgoing, element), in_bytes = span(incoming, element);
      incoming.region = cells.arrived(incoming.region, part);
      if (out_bytes > 0) out.pieces.push_back(outgoing);
      if (in_bytes > 0) in.pieces.push_back(incoming);
      if (!stays) {
        const int peer = place_.moved(line, part);
        if (out_bytes > 0) exchange.sends.push_back({peer, flat(kSend, sent, out_bytes / element)});
        if (in_bytes > 0) exchange.receives.push_back({peer, flat(receiving, received, in_bytes / element)});
        sent += round_up(out_bytes);
      }
      received += round_up(in_bytes);
    }
    reserve(kSend, sent);
    reserve(receiving, received);
    flush(&out);
    program_.steps.push_back(exchange);
    current_ = in;
    order_ = natural(ndim_);
  }

  // Messages go from where cells are to where they are needed. Only where one side is stored in an order in which rows of
  // the message would be scattered they are put together there.
  void move_cells(const Stage& stage, int gathered, int divided) {
    const Handover cells{stage, gathered, divided};
    const int line = stage.before.mesh_axis[gathered], fastest = order_.back() + 1;
    const Index mine = place_.coordinate(line);
    const bool last = is_last(stage);
    const Region before = intersection(current_.region, valid(stage.before)), after = block(stage.after);
    const Buffer buffer = last ? kResult : scratch(after, current_);
    const Piece target = dense(buffer, 0, after, last ? plan_.target.order : order_);
    const bool places = target.stride[fastest] == 1;
    const Buffer receiving = unread(kReceive, kReceive2, current_);
    auto sends_from = [&](const Region& region) {
      return current_.pieces.size() == 1 && current_.pieces[0].stride[fastest] == 1 &&
             intersection(current_.pieces[0].region, region).volume() == region.volume();
    };
    Exchange exchange{{}, {}, element_, order_};
    Field packed{before, {}}, own{after, {}}, in{after, {}};
    std::vector<Region> filled;
    Index sent = 0, received = 0;
    for (Index part = 0; part < stage.before.parts[gathered]; ++part) {
      const Region leaving = cells.leaving(before, mine, part);
      const Region coming = cells.leaving(before, part, mine);
      const Region place = cells.arrived(coming, part);
      if (part == mine) {
        for (Piece piece : clipped(current_, leaving, element_).pieces) {
          piece.region = cells.arrived(piece.region, part);
          own.pieces.push_back(piece);
        }
        continue;
      }
      const int peer = place_.moved(line, part);
      if (!leaving.empty()) {
        const bool direct = sends_from(leaving);
        const Piece piece =
            direct ? placed(current_.pieces[0], leaving, element_) : dense(kSend, sent, leaving, order_);
        if (!direct) {
          packed.pieces.push_back(piece);
          sent += round_up(leaving.volume() * element_);
        }
        exchange.sends.push_back({peer, piece});
      }
      if (!coming.empty()) {
        Piece piece = places ? placed(target, place, element_) : dense(receiving, received, coming, order_);
        piece.region = place;
        if (!places) received += round_up(coming.volume() * element_);
        exchange.receives.push_back({peer, piece});
        in.pieces.push_back(piece);
        filled.push_back(place);
      }
    }
    reserve(kSend, sent);
    reserve(receiving, received);
    if (!packed.pieces.empty()) copy(packed);
    if (!places) {
      program_.steps.push_back(exchange);
      in.pieces.insert(in.pieces.end(), own.pieces.begin(), own.pieces.end());
      current_ = in;
      return;
    }
    // What stays here, and zeros where nothing arrives.
    Field rest{after, {}};
    for (const Region& region : difference(after, filled)) rest.pieces.push_back(clipped(target, region, element_));
    current_ = own;
    copy(rest);
    program_.steps.push_back(exchange);
    current_ = {after, {target}};
  }

  static Index round_up(Index bytes) { return ceil_div(bytes, 64) * 64; }

  // --- Halos.

  void extend(std::size_t index) {
    const Stage& stage = plan_.stages[index];
    // All extensions that follow each other write into one array, the last one's: the block is copied once.
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

  // The transpose of an extension: every cell of the halo is added to the cell that it is a copy of.
  void reduce(std::size_t index) {
    const Stage& stage = plan_.stages[index];
    Region inner = block(stage.after);
    bool last = index + 1 == plan_.stages.size();
    const Buffer buffer = last ? kResult : scratch(inner, current_);
    Piece piece = dense(buffer, 0, inner, last ? plan_.target.order : natural(ndim_));
    exchange_halo(stage, {inner, {piece}});
  }

  void exchange_halo(const Stage& stage, const Field& to) {
    const Buffer receiving = unread(kReceive, kReceive2, current_);
    Halo halo = halo_of(stage, place_, current_, to.region, element_, receiving);
    reserve(kSend, halo.send_bytes);
    reserve(receiving, halo.receive_bytes);
    copy(halo.outgoing);
    program_.steps.push_back(halo.exchange);
    current_ = halo.arrived;
    copy(to, stage.transposed);
    current_ = to;
    order_ = natural(ndim_);
  }

  void crop(const Stage& stage) {
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

  // --- The result.

  void finish() {
    Region region = block(plan_.target);
    Field result{region, {dense(kResult, 0, region, plan_.target.order)}};
    const bool there = current_.pieces.size() == 1 && current_.pieces[0].buffer == kResult;
    if (!pending_.empty()) return flush(&result);
    if (!there) copy(result);
  }

  const Plan& plan_;
  Index batch_, element_;
  Number number_;
  Index real_bytes_;
  bool complex_;  // what cells are after the pending transforms
  int ndim_;
  Place place_;
  Field current_;
  PerAxis<int> order_;  // what it is mostly stored in; the same on all ranks
  std::vector<Lines> pending_;
  bool scaled_ = false;
  int gathered_ = -1;
  Program program_;
};

}  // namespace

Program compile(const Plan& plan, Index batch, Index element, Number number, int place) {
  return Compiler(plan, batch, element, number, place).run();
}

}  // namespace decompops::mpi

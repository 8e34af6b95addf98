#include "cpu/program.h"

#include <algorithm>
#include <cmath>

#include "cpu/compiler.h"

namespace decompops {
namespace {

// The largest plane of intermediate results, in bytes. Such a plane stays in cache, because it takes only a part of the
// second level of the cache.
constexpr Index kPlaneBytes = Index{1} << 20;

}  // namespace

Compiler::Compiler(const Plan& plan, Index batch, Index element, Number number, int place, const std::vector<int>& node)
    : plan_(plan),
      batch_(batch),
      number_(number),
      real_bytes_(number == Number::f64 || number == Number::c128 ? 8 : 4),
      ndim_(plan.source.ndim()),
      place_(plan.mesh, place),
      node_(node) {
  order_ = plan.source.order;
  element_ = element;
  current_ = {block(plan.source), {dense(kInput, 0, block(plan.source), plan.source.order)}};
}

Program Compiler::run() {
  for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
    if (plan_.stages[i].kind == Stage::Kind::pieces) {
      i = add_pieces(i);
    } else {
      add(i);
    }
  }
  finish();
  return std::move(program_);
}

void Compiler::add(std::size_t index) {
  const Stage& stage = plan_.stages[index];
  using Kind = Stage::Kind;
  const bool collected = stage.transforms() || stage.kind == Kind::resize || moves_nothing(stage);
  if (!collected) pad();
  if (!collected && stage.kind != Kind::move) settle();
  switch (stage.kind) {
    case Stage::Kind::move: return move(stage);
    case Stage::Kind::fourier:
    case Stage::Kind::cosine: return transform(stage);
    case Stage::Kind::extend: return stage.transposed ? reduce(index) : extend(index);
    case Stage::Kind::crop: return crop(stage);
    case Stage::Kind::clear: current_ = clipped(current_, valid(stage.before), element_); return;
    case Stage::Kind::resize: return resize(stage);
    case Stage::Kind::pieces:
    case Stage::Kind::joined: break;
  }
  throw Failure("the kernels have no such stage");  // `decode` refuses such stages
}

void Compiler::copy(const Field& to, bool sum) {
  const bool stream = to.region.volume() * element_ >= kStreamBytes;
  program_.steps.push_back(Copy{current_, to, element_, sum, stream, number_});
}

// Writes the cells that `stage` sends, after the transforms that are pending.
void Compiler::fill(const Field& to, const Stage& stage) {
  if (plan_.wire == Wire::f16) {
    double gain = 1;
    // A line of a complex transform is at most √n times as long as before, and so is its largest number. A half spectrum
    // may miss half of its modes, or have a weight of 2. In cosine and sine transforms, all cells have a weight of 2.
    for (const Lines& lines : pending_) {
      const bool is_unitary =
          lines.transform.kind == Transform::Kind::c2c && lines.transform.family == Transform::Family::fourier;
      const double most = (is_unitary ? 1 : 2) * std::pow(2, std::max(lines.transform.power, 0) / 2.0);
      gain *= most * std::fabs(lines.scale) * std::sqrt(static_cast<double>(lines.length));
    }
    // Padding, which may hold any numbers, is not sent. It lies along axes that are sharded.
    Region sent = current_.region;
    for (int axis = 0; axis < ndim_; ++axis) {
      if (stage.before.parts[axis] > 1)
        sent.hi[axis + 1] = std::min(sent.hi[axis + 1], valid(stage.before).hi[axis + 1]);
    }
    reserve(kPlane, Measure::plane_bytes(batch_));
    for (bool ends : {false, true}) {
      program_.steps.push_back(Measure{clipped(current_, sent, element_), to, gain, element_, real_bytes_, ends});
    }
  }
  pending_.empty() ? copy(to) : flush(&to);
}

// --- Transforms: collected until the place of their results is known.

void Compiler::transform(const Stage& stage) {
  using Kind = Transform::Kind;
  const Kind kind = stage.transform.kind;
  const int halved = stage.axes.back();
  // A real transform begins with the axis that is halved, and an inverse real transform ends with this axis. An axis
  // that has just become whole comes before the remaining axes: its lines are collected from the received pieces while
  // they are transformed. Of the remaining axes, the axis with contiguous lines comes first, because these lines are
  // read in place. In an inverse real transform, this axis instead comes last of the remaining axes, so that the last
  // two axes share planes.
  auto turn = [&](int axis) {
    if (stage.transform.is_halving() && axis == halved) return kind == Kind::r2c ? -2 : ndim_;
    if (axis == gathered_) return -1;
    const int place = static_cast<int>(std::find(order_.begin(), order_.end(), axis) - order_.begin());
    return kind == Kind::c2r ? place : ndim_ - 1 - place;
  };
  std::vector<int> axes = stage.axes;
  std::sort(axes.begin(), axes.end(), [&](int a, int b) { return turn(a) < turn(b); });
  const Blocks& points = kind == Kind::c2r ? stage.after : stage.before;
  for (int axis : axes) {
    const auto waits = [axis](const auto& padded) { return padded.first == axis + 1; };
    padded_.erase(std::remove_if(padded_.begin(), padded_.end(), waits), padded_.end());
    Transform lines = stage.transform;
    if (lines.is_halving() && axis != halved) lines = Transform{Kind::c2c, stage.transform.sign};
    if (kind == Kind::r2r && last_element() > real_bytes_) lines.kind = Kind::c2c;
    pending_.push_back({axis + 1, lines, points.lengths[axis], 1.0});
  }
  // Lines are scaled when they leave a tile. Contiguous lines, which may need no tile, come last in an inverse real
  // transform, and first in other transforms. So an inverse real transform scales its first lines, and other transforms
  // scale their last lines.
  if (!scaled_) (kind == Kind::c2r ? pending_.front() : pending_.back()).scale = plan_.scale;
  scaled_ = true;
}

// Zeros at the end of an axis are not stored: its next transform takes its missing cells for zeros. Cells that are cut
// off are not stored either, if a pending transform computes them.
void Compiler::resize(const Stage& stage) {
  pad();
  for (int axis : stage.axes) {
    const Index cells = stage.after.lengths[axis];
    if (cells > stage.before.lengths[axis]) {
      padded_.push_back({axis + 1, cells});
      continue;
    }
    const auto along = [axis](const Lines& lines) { return lines.axis == axis + 1; };
    const auto lines = std::find_if(pending_.rbegin(), pending_.rend(), along);
    if (lines != pending_.rend()) {
      lines->dropped = lines->cells_out() - cells;
    } else {
      current_.region = current_.region.with(axis + 1, 0, cells);
      current_ = clipped(current_, current_.region, element_);
    }
  }
}

// Adds the zeros that no transform has added.
void Compiler::pad() {
  if (padded_.empty()) return;
  settle();
  for (const auto& [axis, cells] : padded_) current_.region = current_.region.with(axis, 0, cells);
  padded_.clear();
}

// Adds steps for the pending transforms. The results of the last one go to `to`, or to scratch memory if `to` is null.
void Compiler::flush(const Field* to) {
  Sweep sweep{{}, false, real_bytes_};
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const Lines& lines = pending_[i];
    bool last = i + 1 == pending_.size();
    element_ = element_after(lines);
    current_.region = current_.region.with(lines.axis, 0, lines.cells_in());
    Region region = current_.region.with(lines.axis, 0, lines.stored());
    Field result = last ? (to ? *to : in_scratch(region, sweep)) : between(region, lines, pending_[i + 1], sweep);
    const bool in_plane = sweep.planes && sweep.passes.empty();
    const bool stream = !in_plane && region.volume() * element_ >= kStreamBytes;
    sweep.passes.push_back({lines, current_, result, stream});
    current_ = result;
    // At most two passes run together, plane by plane. A third pass begins a new step.
    if (sweep.planes && sweep.passes.size() < 2 && !last) continue;
    program_.steps.push_back(sweep);
    sweep.passes.clear();
    sweep.planes = false;
  }
  pending_.clear();
}

// Memory for the results of one pass until the next pass reads them: a plane if it fits into the cache, or else a
// block.
Field Compiler::between(const Region& region, const Lines& lines, const Lines& next, Sweep& sweep) {
  // Lines along the last axis lie side by side along the axis before it. All other lines lie side by side along the
  // last axis. So only planes of the last two axes hold whole tiles of both passes.
  Region plane = region;
  for (int axis = 0; axis < ndim_ - 1; ++axis) plane = plane.with(axis, 0, 1);
  const bool last_two = lines.axis != next.axis && std::min(lines.axis, next.axis) == ndim_ - 1;
  if (last_two && sweep.passes.empty() && plane.volume() * element_ <= kPlaneBytes) {
    sweep.planes = true;
    // Each row begins at the start of a cache line. Otherwise, FFTW took a third longer for half spectra of 256
    // numbers.
    const Index row = whole_cache_lines(plane.count(ndim_) * element_) / element_;
    reserve(kPlane, plane.count(ndim_ - 1) * row * element_);
    Piece piece = dense(kPlane, 0, plane);
    piece.stride[ndim_ - 1] = row;
    for (int axis = 0; axis < ndim_ - 1; ++axis) piece.stride[axis] = 0;  // every plane lies in the same memory
    piece.region = region;
    return {region, {piece}};
  }
  return in_scratch(region, sweep);
}

// While the second pass over planes writes, the first pass still has planes to read from its source. So the results
// must not go to the memory of this source.
Field Compiler::in_scratch(const Region& region, const Sweep& sweep) {
  const Field& read = sweep.passes.empty() ? current_ : sweep.passes.front().from;
  return {region, {dense(scratch(region, read), 0, region)}};
}

// Runs the pending transforms, and stores their result in one array. The next stage cannot read it from messages.
void Compiler::settle() {
  if (pending_.empty()) return;
  flush(nullptr);
  order_ = natural(ndim_);
}

// Scratch memory that does not contain `read`.
Buffer Compiler::scratch(const Region& region, const Field& read) {
  const Buffer buffer = free_of(read, in_slot(kScratch));
  reserve(buffer, region.volume() * element_);
  return buffer;
}

bool Compiler::lies_in(const Field& field, Buffer buffer) {
  return std::any_of(field.pieces.begin(), field.pieces.end(),
                     [buffer](const Piece& piece) { return piece.buffer == buffer; });
}

Buffer Compiler::free_of(const Field& field, Buffer buffer) {
  return lies_in(field, buffer) ? static_cast<Buffer>(buffer + 1) : buffer;
}

// The block after the pending transforms.
Region Compiler::result_region() const {
  Region region = current_.region;
  for (const Lines& lines : pending_) region = region.with(lines.axis, 0, lines.stored());
  return region;
}

// The bytes of a cell after a transform.
Index Compiler::element_after(const Lines& lines) const { return real_bytes_ * lines.transform.reals_out(); }

// --- The result.

Field Compiler::result() const {
  const Region region = decompops::block(plan_.target, batch_);
  return {region, {dense(kResult, 0, region, plan_.target.order)}};
}

bool Compiler::has_result() const { return current_.pieces.size() == 1 && current_.pieces[0].buffer == kResult; }

void Compiler::finish() {
  pad();
  const Field to = result();
  if (!pending_.empty()) return flush(&to);
  if (!has_result()) copy(to);
}

Program compile(const Plan& plan, Index batch, Index element, Number number, int place, const std::vector<int>& node) {
  return Compiler(plan, batch, element, number, place, node).run();
}

}  // namespace decompops

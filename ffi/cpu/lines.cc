#include "cpu/lines.h"

#include <algorithm>

#include "cpu/narrow.h"
#include "cpu/tile.h"

namespace decompops {
namespace {

// Conjugates and weights the half spectra in a tile, line by line, before or after FFTW's transform.
template <class Real>
class Change {
 public:
  static Change before(const Lines& lines) {
    return lines.transform.kind == Transform::Kind::c2r ? Change(lines, -1, Real(0.5)) : Change();
  }

  static Change after(const Lines& lines) {
    return lines.transform.kind == Transform::Kind::r2c ? Change(lines, 1, Real(2)) : Change();
  }

  bool is_none() const { return !conjugate_ && weight_ == 1; }

  void apply(std::byte* tile, Index count, Index pitch) const {
    if (is_none()) return;
    for (Index i = 0; i < count; ++i) {
      Real* line = reinterpret_cast<Real*>(tile) + 2 * i * pitch;
      for (Index k = 0; k <= length_ / 2; ++k) {
        const Real factor = k > 0 && 2 * k != length_ ? weight_ : Real(1);
        line[2 * k] *= factor;
        line[2 * k + 1] *= conjugate_ ? -factor : factor;
      }
    }
  }

 private:
  Change() = default;
  // Half spectra are conjugated if FFTW has the opposite sign. Modes are multiplied or divided by the number of times
  // that they appear in the full spectrum.
  Change(const Lines& lines, int conjugate_for, Real weight)
      : length_(lines.length), conjugate_(lines.transform.sign == conjugate_for) {
    if (lines.transform.weighted) weight_ = weight;
  }

  Index length_ = 0;  // in real space
  bool conjugate_ = false;
  Real weight_ = 1;
};

// The number of cells of a tile along each axis, and the distance, in lines, between neighbouring lines along each
// axis. A tile holds as many lines as fit, first along the fastest axis.
struct Box {
  Box(const Region& region, int along, Index width) : cells(PerAxis<Index>::filled(region.axes(), 1)), place(cells) {
    Index lines = 1;
    for (int axis = region.axes() - 1; axis >= 0; --axis) {
      place[axis] = lines;
      if (axis == along) continue;
      cells[axis] = std::clamp<Index>(width / lines, 1, region.count(axis));
      lines *= cells[axis];
    }
    cells[along] = region.count(along);
  }

  PerAxis<Index> cells, place;
};

// Where FFTW reads or writes lines without a copy: all pieces of a field have the same strides, and lines are contiguous,
// or lie side by side in the first level of the cache.
class InPlace {
 public:
  InPlace() = default;
  InPlace(const Field& field, const Box& box, Index width, int along, Index cells, Index element,
          bool may_lie_side_by_side)
      : field_(&field), along_(along), element_(element) {
    if (field.pieces.empty()) return;
    const Strides& stride = field.pieces.front().stride;
    for (const Piece& piece : field.pieces) {
      if (piece.narrow.wire != Wire::none || !(piece.stride == stride)) return;
      if (piece.region.lo[along] > 0 || piece.region.hi[along] < cells) return;
    }
    Index pitch = 0;
    for (int axis = 0; axis < box.cells.size(); ++axis) {
      if (axis == along || box.cells[axis] == 1) continue;
      const Index distance = stride[axis] / box.place[axis];
      if (distance * box.place[axis] != stride[axis] || (pitch != 0 && distance != pitch)) return;
      pitch = distance;
    }
    if (pitch == 0) pitch = cells;  // one line at a time
    // Pieces of one line may have a stride of 1 along two axes: lines with this pitch would overlap.
    if (stride[along] == 1 && pitch >= cells && pitch <= 2 * cells) spacing_ = {1, pitch};
    // The lines of a tile that is not full must not overlap either.
    const bool is_apart = stride[along] >= width && stride[along] * cells * element <= kStridedBytes;
    if (may_lie_side_by_side && pitch == 1 && is_apart) spacing_ = {stride[along], 1};
  }

  bool is_possible() const { return spacing_.cells > 0; }
  const Spacing& spacing() const { return spacing_; }

  // The address of the lines of `part`; null if they must be copied to the tile.
  std::byte* find(const Region& part, const Memory& memory) const {
    if (!is_possible()) return nullptr;
    for (const Piece& piece : field_->pieces) {
      bool is_inside = true;
      Index cell = 0;
      for (int axis = 0; axis < part.axes(); ++axis) {
        if (axis == along_) continue;
        is_inside = is_inside && piece.region.lo[axis] <= part.lo[axis] && part.hi[axis] <= piece.region.hi[axis];
        cell += piece.stride[axis] * (part.lo[axis] - piece.region.lo[axis]);
      }
      if (!is_inside) continue;
      std::byte* start = memory[piece] + cell * element_;
      return reinterpret_cast<std::uintptr_t>(start) % kCacheLine == 0 ? start : nullptr;
    }
    return nullptr;
  }

 private:
  const Field* field_ = nullptr;
  int along_ = 0;
  Index element_ = 0;
  Spacing spacing_{0, 0};
};

// Whether the lines of `field` lie side by side along the same axis as the lines of the boxes.
bool lie_side_by_side(const Field& field, const Box& box, int along) {
  int axis = field.region.axes() - 1;
  while (axis == along || (axis > 0 && box.cells[axis] == 1)) --axis;
  return axis >= 0 && std::all_of(field.pieces.begin(), field.pieces.end(),
                                  [axis](const Piece& piece) { return piece.stride[axis] == 1; });
}

// Returns a width near `width`, so that `count` lines side by side leave no small last tile. If `count` is at most
// `width`, the result is a multiple of `count`. Otherwise, it divides `count` nearly evenly. For example, half spectra
// of 256 points have 129 lines: with a width of 32, the last tile would have one line. The result is 33.
Index evened(Index width, Index count) {
  return count <= width ? width / count * count : ceil_div(count, (count + width / 2) / width);
}

Index lines_of(const Region& part, int along) {
  Index lines = 1;
  for (int axis = 0; axis < part.axes(); ++axis) {
    if (axis != along) lines *= part.count(axis);
  }
  return lines;
}

// Starts to fetch the memory behind `lines`, which mostly holds the next lines. Call this before `lines` are
// transformed.
void fetch_behind(const std::byte* lines, Index bytes) {
  for (Index i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(lines + bytes + i, 0, 2);
}

}  // namespace

template <class Real>
struct LinePass<Real>::Parts {
  Parts(const Lines& lines, const Field& from, const Field& to, const Region& region, Planning planning)
      : width(width_of(lines, from, to, region)),
        box(region, lines.axis, width),
        before(Change<Real>::before(lines)),
        after(Change<Real>::after(lines)) {
    const int along = lines.axis;
    const Index element_in = sizeof(Real) * lines.transform.reals_in();
    const Index element_out = sizeof(Real) * lines.transform.reals_out();
    const bool side_by_side =
        may_lie_side_by_side<Real>(lines) && lie_side_by_side(from, box, along) && lie_side_by_side(to, box, along);
    // FFTW overwrites the input of transforms from complex to real numbers.
    if (lines.transform.kind != Transform::Kind::c2r)
      there = InPlace(from, box, width, along, lines.cells_in(), element_in, side_by_side);
    if (after.is_none() && lines.scale == 1)
      here = InPlace(to, box, width, along, lines.cells_out(), element_out, side_by_side);
    auto spacing = [&](const InPlace& in_place, Index cells) {
      if (in_place.is_possible()) return in_place.spacing();
      return side_by_side ? Spacing{width, 1} : in_rows<Real>(cells);
    };
    tile = &tile_for<Real>(lines, width, spacing(there, lines.cells_in()), spacing(here, lines.cells_out()), planning);
    Index covered = 0;
    for (const Piece& piece : from.pieces) covered += piece.region.volume();
    has_gaps = covered != from.region.volume();
  }

  static Index width_of(const Lines& lines, const Field& from, const Field& to, const Region& region) {
    const int along = lines.axis, fastest = region.axes() - (along == region.axes() - 1 ? 2 : 1);
    auto is_scattered = [along](const Field& field) {
      return std::any_of(field.pieces.begin(), field.pieces.end(),
                         [&](const Piece& piece) { return piece.stride[along] != 1; });
    };
    const bool scattered = is_scattered(from) || is_scattered(to);
    return evened(width_for<Real>(lines, lines_of(region, along), scattered), region.count(fastest));
  }

  Index width;
  Box box;
  Change<Real> before, after;
  InPlace there, here;
  Tile* tile;
  bool has_gaps;
};

template <class Real>
LinePass<Real>::LinePass(const Lines& lines, const Field& from, const Field& to, bool stream, Planning planning,
                         const Memory& memory, const std::function<void()>& between)
    : lines_(lines), from_(from), to_(to), stream_(stream), planning_(planning), memory_(memory), between_(between) {}

template <class Real>
LinePass<Real>::~LinePass() = default;

template <class Real>
void LinePass<Real>::run(const Region& region) {
  // `region` may be larger than this pass needs, because a real transform in the same sweep has different numbers of
  // cells before and after it.
  const int along = lines_.axis;
  const Region whole = intersection(region, to_.region).with(along, 0, std::max(lines_.cells_in(), lines_.cells_out()));
  if (whole.empty()) return;
  if (!parts_) parts_ = std::make_unique<Parts>(lines_, from_, to_, whole, planning_);
  const Tile& tile = *parts_->tile;
  for_boxes(whole, parts_->box.cells, [&](const Region& part) {
    if (between_) between_();
    const Index count = lines_of(part, along);
    const bool is_full = count >= parts_->width;
    std::byte* input = is_full ? parts_->there.find(part, memory_) : nullptr;
    std::byte* output = is_full ? parts_->here.find(part, memory_) : nullptr;
    if (input == nullptr) {
      input = parts_->tile->input();
      if (parts_->has_gaps) parts_->tile->clear();
      load(part.with(along, 0, lines_.cells_in()));
      parts_->before.apply(input, count, tile.in().lines);
    } else if (from_.pieces[0].buffer != kPlane && tile.in().cells == 1) {
      fetch_behind(input, parts_->width * tile.in().lines * tile.in_bytes());
    }
    tile.run(input, output == nullptr ? parts_->tile->output() : output);
    if (output != nullptr) return;
    parts_->after.apply(parts_->tile->output(), count, tile.out().lines);
    store(part.with(along, 0, lines_.cells_out()));
  });
}

// Copies cells from their pieces to the tile.
template <class Real>
void LinePass<Real>::load(const Region& cells) const {
  const Tile& tile = *parts_->tile;
  for_common(from_, cells, tile.in(), parts_->tile->input(), tile.in_bytes(),
             [&](const Piece& part, const Cells& inside) {
               copy(inside, cells_of(part, memory_), part.region.counts(), tile.in_bytes(), Access::ahead);
             });
}

// Copies cells from the tile to their pieces.
template <class Real>
void LinePass<Real>::store(const Region& cells) const {
  const Tile& tile = *parts_->tile;
  const Access access = stream_ ? Access::stream : Access::plain;
  for_common(to_, cells, tile.out(), parts_->tile->output(), tile.out_bytes(),
             [&](const Piece& part, const Cells& inside) {
               copy(cells_of(part, memory_), inside, part.region.counts(), tile.out_bytes(), access,
                    {lines_.scale, sizeof(Real)});
             });
}

// Calls `body(part, inside)` for the part of each piece that lies in `cells`. `inside` is its place in the tile.
template <class Real>
template <class Body>
void LinePass<Real>::for_common(const Field& field, const Region& cells, const Spacing& spacing, std::byte* start,
                                Index element, const Body& body) const {
  Strides stride = parts_->box.place;
  for (Index& lines_between : stride) lines_between *= spacing.lines;
  stride[lines_.axis] = spacing.cells;
  for (const Piece& piece : field.pieces) {
    const Piece part = clipped(piece, cells, element);
    if (part.region.empty()) continue;
    Cells inside{start, stride};
    for (int axis = 0; axis < cells.axes(); ++axis) {
      inside.start += element * stride[axis] * (part.region.lo[axis] - cells.lo[axis]);
    }
    body(part, inside);
  }
}

template class LinePass<float>;
template class LinePass<double>;

}  // namespace decompops

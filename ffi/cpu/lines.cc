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

// Returns the distance in cells between neighbouring lines of a box if FFTW may read or write the lines of `region`
// where they lie in memory. Otherwise, returns 0. FFTW may do so if all lines are in one piece, contiguous and equally
// spaced.
Index pitch_of(const Field& field, const Region& region, const Box& box, int along) {
  if (field.pieces.size() != 1) return 0;
  const Piece& piece = field.pieces[0];
  if (piece.narrow.wire != Wire::none) return 0;
  if (piece.stride[along] != 1 || intersection(piece.region, region).volume() < region.volume()) return 0;
  Index pitch = 0;
  for (int axis = 0; axis < region.axes(); ++axis) {
    if (axis == along || box.cells[axis] == 1) continue;
    const Index distance = piece.stride[axis] / box.place[axis];
    if (distance * box.place[axis] != piece.stride[axis] || (pitch != 0 && distance != pitch)) return 0;
    pitch = distance;
  }
  const Index cells = region.count(along);
  if (pitch == 0) return cells;  // one line at a time
  return pitch <= 2 * cells ? pitch : 0;
}

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

// Starts to fetch the memory behind `lines`, which mostly holds the next lines. Call this before `lines` are
// transformed.
void fetch_behind(const std::byte* lines, Index bytes) {
  for (Index i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(lines + bytes + i, 0, 2);
}

template <class Real>
void run(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream, Planning planning,
         const Memory& memory, const std::function<void()>& between) {
  if (region.empty()) return;
  const int along = lines.axis;
  auto lines_of = [along](const Region& part) { return part.volume() / part.count(along); };
  auto cells_in = [&](const Region& part) { return part.with(along, 0, lines.cells_in()); };
  auto cells_out = [&](const Region& part) { return part.with(along, 0, lines.cells_out()); };
  auto is_scattered = [along](const Field& field) {
    return std::any_of(field.pieces.begin(), field.pieces.end(), [&](const Piece& p) { return p.stride[along] != 1; });
  };
  const int fastest = region.axes() - (along == region.axes() - 1 ? 2 : 1);
  const Index width =
      evened(width_for<Real>(lines, lines_of(region), is_scattered(from) || is_scattered(to)), region.count(fastest));
  const Box box(region, along, width);
  const auto before = Change<Real>::before(lines), after = Change<Real>::after(lines);
  // FFTW overwrites the input of transforms from complex to real numbers.
  const bool reads = lines.transform.kind != Transform::Kind::c2r;
  const bool writes = after.is_none() && lines.scale == 1;
  const Index pitch_there = reads ? pitch_of(from, cells_in(region), box, along) : 0;
  const Index pitch_here = writes ? pitch_of(to, cells_out(region), box, along) : 0;
  const bool side_by_side = may_lie_side_by_side<Real>(lines) && pitch_there == 0 && pitch_here == 0 &&
                            lie_side_by_side(from, box, along) && lie_side_by_side(to, box, along);
  auto spacing = [&](Index pitch, Index cells) {
    if (side_by_side) return Spacing{width, 1};
    return pitch > 0 ? Spacing{1, pitch} : in_rows<Real>(cells);
  };
  auto& tile = tile_for<Real>(lines, width, spacing(pitch_there, lines.cells_in()),
                              spacing(pitch_here, lines.cells_out()), planning);
  Index covered = 0;
  for (const Piece& piece : from.pieces) covered += piece.region.volume();
  const bool has_gaps = covered != from.region.volume();

  // The address at which FFTW can use the lines of `part` without a copy; null if they must be copied to the tile.
  auto in_place = [&](const Field& field, const Region& part, Index pitch, Index element) -> std::byte* {
    if (pitch == 0 || lines_of(part) < width) return nullptr;
    const Piece piece = placed(field.pieces[0], part, element);
    std::byte* start = memory[piece];
    return reinterpret_cast<std::uintptr_t>(start) % kCacheLine == 0 ? start : nullptr;
  };
  auto move = [&](const Field& field, const Region& cells, std::byte* tile_lines, const Spacing& spacing, Index element,
                  bool load) {
    Strides stride = box.place;
    for (Index& lines_between : stride) lines_between *= spacing.lines;
    stride[along] = spacing.cells;
    for (const Piece& piece : field.pieces) {
      const Region common = intersection(piece.region, cells);
      if (common.empty()) continue;
      const Piece part = clipped(piece, common, element);
      const Cells outside = cells_of(part, memory);
      Cells inside{tile_lines, stride};
      for (int axis = 0; axis < cells.axes(); ++axis) {
        inside.start += element * stride[axis] * (common.lo[axis] - cells.lo[axis]);
      }
      if (load) {
        copy(inside, outside, common.counts(), element, Access::ahead);
      } else {
        const Access access = stream ? Access::stream : Access::plain;
        copy(outside, inside, common.counts(), element, access, {lines.scale, sizeof(Real)});
      }
    }
  };

  for_boxes(region, box.cells, [&](const Region& part) {
    if (between) between();
    std::byte* input = in_place(from, part, pitch_there, tile.in_bytes());
    std::byte* output = in_place(to, part, pitch_here, tile.out_bytes());
    if (input == nullptr) {
      input = tile.input();
      if (has_gaps) tile.clear();
      move(from, cells_in(part), input, tile.in(), tile.in_bytes(), true);
      before.apply(input, lines_of(part), tile.in().lines);
    } else if (from.pieces[0].buffer != kPlane) {
      fetch_behind(input, width * pitch_there * tile.in_bytes());
    }
    tile.run(input, output == nullptr ? tile.output() : output);
    if (output != nullptr) return;
    after.apply(tile.output(), lines_of(part), tile.out().lines);
    move(to, cells_out(part), tile.output(), tile.out(), tile.out_bytes(), false);
  });
}

}  // namespace

void transform_lines(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream,
                     Index real_bytes, Planning planning, const Memory& memory, const std::function<void()>& between) {
  // `region` may be larger than this pass needs, because a real transform in the same sweep has different numbers of
  // cells before and after it.
  const Region here =
      intersection(region, to.region).with(lines.axis, 0, std::max(lines.cells_in(), lines.cells_out()));
  if (real_bytes == 4) {
    run<float>(lines, from, to, here, stream, planning, memory, between);
  } else {
    run<double>(lines, from, to, here, stream, planning, memory, between);
  }
}

}  // namespace decompops

#include "cpu/finder.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/vectors.h"

namespace decompops {
namespace {

// Coordinates beyond this are no cells of any block.
constexpr double kFar = 1e15;
// Cells that are nearer than this are counted by integers of four bytes.
constexpr double kNear = 1e9;
constexpr Index kSmall = 500'000'000;

}  // namespace

template <class Real, class Share>
struct Finder<Real, Share>::Vectors {
  Finder& finder;
  Real shifted[kMost];
  std::int32_t places[kMost];

  explicit Vectors(Finder& finder) : finder(finder) {}

  // Sets `shifted` to the coordinates from the first cell that a point touches. Returns whether all are at home.
  template <int Ndim>
  DECOMPOPS_INLINE bool shift(const Line& line, const Real* positions, int count) {
    const auto [scale, first, period, start, low, high, tolerance, shift] = line.frame;
    const Real last = line.last, forward = shift - line.shift;
    for (int k = 0; k < count; ++k) shifted[k] = positions[k * Ndim] * scale - first;
    if (period > 0) {
      for (int k = 0; k < count; ++k) shifted[k] -= std::floor((shifted[k] - start) / period) * period;
    }
    std::int32_t astray = 0;
    for (int k = 0; k < count; ++k) {
      const Real s = shifted[k], moved = s < low ? low : s >= high ? last : s;
      astray |= !(std::abs(moved - s) <= tolerance);  // also if `s` is NaN or infinite
      shifted[k] = moved + forward;
    }
    return astray == 0;
  }

  // Points that are more than one length outside of the block are rare. Returns whether there are any.
  DECOMPOPS_INLINE bool place(const Line& line, Share* fractions, int count) {
    const auto length = static_cast<std::int32_t>(line.wraps ? line.length : 0);
    const auto most = static_cast<std::int32_t>(line.wraps ? line.length : std::numeric_limits<std::int32_t>::max());
    const auto origin = static_cast<std::int32_t>(line.tiles.origin);
    const auto span = static_cast<std::uint32_t>(line.tiles.span);
    std::int32_t rare = 0;
    for (int k = 0; k < count; ++k) {
      const Real s = shifted[k], near = std::abs(s) < Real(kNear) ? s : -Real(kNear);
      std::int32_t first = static_cast<std::int32_t>(near);
      first -= static_cast<Real>(first) > near;
      fractions[k] = static_cast<Share>(near - static_cast<Real>(first));
      first += length & -static_cast<std::int32_t>(first < 0);
      first -= length & -static_cast<std::int32_t>(first >= most);
      places[k] = first - origin;
      rare |= static_cast<std::uint32_t>(places[k]) >= span;
    }
    return rare != 0;
  }

  // The compiler makes vectors of these loops.
  template <int Ndim>
  DECOMPOPS_INLINE void find(const Real* positions, int count) {
    std::fill_n(finder.tile, count, 0);
    std::fill_n(finder.cell, count, 0);
    finder.all_touch_ = true;
    for (int axis = 0; axis < Ndim; ++axis) {
      const int i = Cloud::kMostAxes - Ndim + axis;
      const Line& line = finder.lines_[i];
      finder.all_at_home &= shift<Ndim>(line, positions + axis, count);
      if (place(line, finder.fractions[i], count) || !finder.is_small_ || !finder.all_touch_) {
        finder.find_rare(i, shifted, count);
        continue;
      }
      const auto tiles = static_cast<std::int32_t>(line.tiles.tiles), stride = static_cast<std::int32_t>(line.stride);
      const int bits = line.tiles.bits;
      for (int k = 0; k < count; ++k) {
        finder.tile[k] = finder.tile[k] * tiles + (places[k] >> bits);
        finder.cell[k] += (places[k] & ((1 << bits) - 1)) * stride;
      }
    }
    if (finder.all_touch_) return;
    const auto none = static_cast<std::int32_t>(finder.tiles_.count);
    for (int k = 0; k < count; ++k) finder.tile[k] = finder.tile[k] < 0 ? none : finder.tile[k];
  }

  DECOMPOPS_INLINE void find_all(const Real* positions, int count) {
    switch (finder.ndim_) {
      case 1: return find<1>(positions, count);
      case 2: return find<2>(positions, count);
      default: return find<3>(positions, count);
    }
  }

  [[gnu::noinline]] void plainly(const Real* positions, int count) { find_all(positions, count); }
#ifdef DECOMPOPS_HAS_AVX2
  DECOMPOPS_AVX2 [[gnu::noinline]] void by_avx2(const Real* positions, int count) { find_all(positions, count); }
#endif
};

template <class Real, class Share>
Finder<Real, Share>::Finder(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box, const Points<Real>& points)
    : tiles_(tiles), positions_(points.positions), first_axis_(cloud.first_axis), ndim_(cloud.ndim()) {
  for (int i = 0; i < Cloud::kMostAxes; ++i) {
    const Cloud::Axis& axis = cloud.axes[i];
    const Frame<Real>& frame = points.frames[i];
    const Real last = frame.high * (1 - std::numeric_limits<Real>::epsilon());
    lines_[i] = {frame, last, tiles.axes[i], axis.length, axis.wraps, Real(axis.width) / 2 - 1, box.strides[i]};
    is_small_ = is_small_ && axis.length < kSmall;
  }
}

template <class Real, class Share>
void Finder<Real, Share>::find(Index begin, int count) {
  Vectors vectors(*this);
  const Real* positions = positions_ + begin * ndim_;
#ifdef DECOMPOPS_HAS_AVX2
  if (has_avx2()) return vectors.by_avx2(positions, count);
#endif
  vectors.plainly(positions, count);
}

template <class Real, class Share>
void Finder<Real, Share>::find_rare(int i, const Real* shifted, int count) {
  const Line& line = lines_[i];
  for (int k = 0; k < count; ++k) {
    const Real s = shifted[k];
    Index place = -1;
    if (tile[k] >= 0 && s > -kFar && s < kFar) {
      Index first = static_cast<Index>(s);
      if (static_cast<Real>(first) > s) --first;
      fractions[i][k] = static_cast<Share>(s - static_cast<Real>(first));
      place = (line.wraps ? wrapped(first, line.length) : first) - line.tiles.origin;
    }
    if (place < 0 || place >= line.tiles.span) {
      all_touch_ = false;
      tile[k] = -1;
    } else {
      tile[k] = static_cast<std::int32_t>(tile[k] * line.tiles.tiles + (place >> line.tiles.bits));
      cell[k] += static_cast<std::int32_t>((place & ((Index{1} << line.tiles.bits) - 1)) * line.stride);
    }
  }
}

template class Finder<float, float>;
template class Finder<float, double>;
template class Finder<double, float>;
template class Finder<double, double>;

}  // namespace decompops

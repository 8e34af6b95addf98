// The cells that points touch.

#pragma once

#include <cstdint>

#include "cpu/spread.h"

namespace decompops {

inline Index wrapped(Index cell, Index length) {
  if (cell >= 0 && cell < length) return cell;
  const Index rest = cell % length;
  return rest < 0 ? rest + length : rest;
}

// The block is cut into tiles, by the first cell that points touch. The points of a tile touch the cells of a box.
struct Tiles {
  // The length of a tile is a power of two: for grids of three axes, two axes and one axis. So the box of a tile fits
  // into the second level of the cache. Boxes of wide windows are large beside their tiles, so these tiles are longer.
  static constexpr int kBits[Cloud::kMostAxes] = {4, 6, 12};
  static constexpr int kWide = 4;

  struct Axis {
    Index origin;  // the first cell that points can touch first
    Index span;    // the number of cells that points can touch first
    Index tiles;
    int bits;
  };

  Axis axes[Cloud::kMostAxes];
  Index lengths[Cloud::kMostAxes];
  Index count = 1;

  // With `whole`, one tile has all cells.
  explicit Tiles(const Cloud& cloud, bool whole = false) {
    for (int i = 0; i < Cloud::kMostAxes; ++i) {
      const Cloud::Axis& axis = cloud.axes[i];
      const Index origin = axis.wraps ? 0 : 1 - axis.width, span = axis.length - origin;
      const bool longer = cloud.first_axis == 0 && i > 0 && axis.width > kWide;
      int bits = i < cloud.first_axis ? 0 : kBits[cloud.first_axis] + longer;
      while (whole && (Index{1} << bits) < span) ++bits;
      axes[i] = {origin, span, ceil_div(span, Index{1} << bits), bits};
      lengths[i] = std::min(span, Index{1} << bits);
      count *= axes[i].tiles;
    }
  }

  // Sets `first` to the first cell of each axis.
  void locate(Index tile, Index (&first)[Cloud::kMostAxes]) const {
    for (int i = Cloud::kMostAxes - 1; i >= 0; --i) {
      first[i] = axes[i].origin + (tile % axes[i].tiles << axes[i].bits);
      tile /= axes[i].tiles;
    }
  }
};

// Finds the tiles of points, `kMost` points at a time.
template <class Real, class Share>
class Finder {
 public:
  static constexpr int kMost = 256;

  // For each point: its tile, or the number of tiles if it touches no cell; its first cell in the box; and its fractions.
  std::int32_t tile[kMost], cell[kMost];
  Share fractions[Cloud::kMostAxes][kMost] = {};
  bool all_at_home = true;  // of the points so far

  Finder(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box, const Points<Real>& points);

  // Finds the points from number `begin`. Each call rounds equally.
  void find(Index begin, int count);

 private:
  struct Line {
    Frame<Real> frame;
    Real last;  // the largest coordinate below `frame.high`
    Tiles::Axis tiles;
    Index length;
    bool wraps;
    Real shift;
    Index stride;
  };

  // How one function of the processor finds all points.
  struct Vectors;

  void find_rare(int i, const Real* shifted, int count);

  const Tiles& tiles_;
  const Real* positions_;
  const int first_axis_, ndim_;
  Line lines_[Cloud::kMostAxes];
  bool is_small_ = true, all_touch_ = true;
};

}  // namespace decompops

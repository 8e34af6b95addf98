// Points on a block in the order of tiles of cells.

#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cpu/pool.h"
#include "cpu/spread.h"

namespace decompops {

// The work on points is cut into at most this many pieces, whatever the number of threads.
constexpr int kPieces = 64;
// With fewer points, waking a thread takes longer than the work.
constexpr Index kFewPoints = 4096;
// A job has at most so many points, so that threads share the work even if all points are in one tile.
constexpr Index kMostOfJob = 16384;

// Cells of this many bytes stay in the first level of the cache.
constexpr Index kFirstLevel = 1 << 15;
// Points of larger boxes are put in the order of blocks of so many rows, as a power of two.
constexpr int kRowBits = 2;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <class T>
using Memory = std::unique_ptr<T[], Free>;

// Returns memory that is not set to zeros.
template <class T>
Memory<T> memory(Index count) {
  // New pages cost more than they are used here, unless they are large.
  constexpr Index kLargePage = Index{1} << 21;
  const Index bytes = std::max<Index>(count, 1) * sizeof(T), page = bytes < kLargePage ? 64 : kLargePage;
  void* found = std::aligned_alloc(page, ceil_div(bytes, page) * page);
  if (found == nullptr) throw Failure("no memory for " + std::to_string(bytes) + " bytes to put points in order");
#ifdef MADV_HUGEPAGE
  if (page == kLargePage) madvise(found, bytes, MADV_HUGEPAGE);
#endif
  return Memory<T>(static_cast<T*>(found));
}

inline Index wrapped(Index cell, Index length) {
  if (cell >= 0 && cell < length) return cell;
  const Index rest = cell % length;
  return rest < 0 ? rest + length : rest;
}

// Calls `body(piece)` for each piece from 0 to `pieces` - 1, on several threads.
template <class Body>
void in_pieces(int pieces, int threads, const Body& body) {
  if (threads <= 1 || pieces <= 1) {
    for (int piece = 0; piece < pieces; ++piece) body(piece);
  } else {
    Pool::get().run(pieces, threads, [&](int piece, int) { body(piece); });
  }
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

// Some points of one tile.
struct Job {
  Index tile, begin, end;
};

// Finds the tiles of points, `kMost` points at a time.
template <class Real, class Share>
class Finder {
 public:
  static constexpr int kMost = 256;

  // For each point: its tile, or the number of tiles if it touches no cell; its first cell in the box; and its fractions.
  std::int32_t tile[kMost], cell[kMost];
  Share fractions[Cloud::kMostAxes][kMost] = {};

  Finder(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box)
      : tiles_(tiles), first_axis_(cloud.first_axis), ndim_(cloud.ndim()) {
    for (int i = 0; i < Cloud::kMostAxes; ++i) {
      const Cloud::Axis& axis = cloud.axes[i];
      lines_[i] = {tiles.axes[i], axis.length, axis.wraps, Real(axis.width) / 2 - 1, box.strides[i]};
      is_small_ = is_small_ && axis.length < kSmall;
    }
  }

  void find(const Real* points, int count) {
    std::fill_n(tile, count, 0);
    std::fill_n(cell, count, 0);
    all_touch_ = true;
    for (int i = first_axis_; i < Cloud::kMostAxes; ++i) find_along(i, points + i - first_axis_, count);
    if (all_touch_) return;
    for (int k = 0; k < count; ++k) tile[k] = tile[k] < 0 ? static_cast<std::int32_t>(tiles_.count) : tile[k];
  }

 private:
  // Coordinates beyond this are no cells of any block; they may be infinite or NaN.
  static constexpr double kFar = 1e15;
  // Cells that are nearer than this are counted by integers of four bytes.
  static constexpr Real kNear = 1e9;
  static constexpr Index kSmall = 500'000'000;
  struct Line {
    Tiles::Axis tiles;
    Index length;
    bool wraps;
    Real shift;
    Index stride;
  };

  // The compiler makes vectors of this loop. Points that are more than one length outside of the block are rare.
  void find_along(int i, const Real* s, int count) {
    const Line& line = lines_[i];
    const auto length = static_cast<std::int32_t>(line.wraps ? line.length : 0);
    const auto most = static_cast<std::int32_t>(line.wraps ? line.length : std::numeric_limits<std::int32_t>::max());
    const auto origin = static_cast<std::int32_t>(line.tiles.origin);
    const auto span = static_cast<std::uint32_t>(line.tiles.span);
    const auto tiles = static_cast<std::int32_t>(line.tiles.tiles), stride = static_cast<std::int32_t>(line.stride);
    const int bits = line.tiles.bits;
    std::int32_t rare = !is_small_ || !all_touch_;
    std::int32_t places[kMost];
    for (int k = 0; k < count; ++k) {
      const Real shifted = s[k * ndim_] - line.shift;
      const Real near = shifted > -kNear && shifted < kNear ? shifted : -kNear;
      std::int32_t first = static_cast<std::int32_t>(near);
      first -= static_cast<Real>(first) > near;
      fractions[i][k] = static_cast<Share>(near - static_cast<Real>(first));
      first += first < 0 ? length : 0;
      first -= first >= most ? length : 0;
      places[k] = first - origin;
      rare |= static_cast<std::uint32_t>(places[k]) >= span;
    }
    if (rare) return find_rare(i, s, count);
    for (int k = 0; k < count; ++k) {
      tile[k] = tile[k] * tiles + (places[k] >> bits);
      cell[k] += (places[k] & ((1 << bits) - 1)) * stride;
    }
  }

  void find_rare(int i, const Real* s, int count) {
    const Line& line = lines_[i];
    for (int k = 0; k < count; ++k) {
      const Real shifted = s[k * ndim_] - line.shift;
      Index place = -1;
      if (tile[k] >= 0 && shifted > -kFar && shifted < kFar) {
        Index first = static_cast<Index>(shifted);
        if (static_cast<Real>(first) > shifted) --first;
        fractions[i][k] = static_cast<Share>(shifted - static_cast<Real>(first));
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

  const Tiles& tiles_;
  const int first_axis_, ndim_;
  Line lines_[Cloud::kMostAxes];
  bool is_small_ = true, all_touch_ = true;
};

// Returns whether most points are in the tile of the point before, judged by some of them.
template <class Share, class Real>
bool in_order_of_tiles(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box, const Real* points, Index count) {
  constexpr int kSamples = 16;
  Finder<Real, Share> finder(cloud, tiles, box);
  const int some = static_cast<int>(std::min<Index>(finder.kMost, count / kSamples));
  int same = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    finder.find(points + count / kSamples * sample * cloud.ndim(), some);
    for (int k = 1; k < some; ++k) same += finder.tile[k] == finder.tile[k - 1];
  }
  return 2 * same > kSamples * some;
}

// All points in the order of their tiles, and in their own order within a tile: by a counting sort. Points that touch no
// cell are at the end.
template <class Share>
struct Order {
  Memory<Spot<Share>> spots;
  std::vector<Job> jobs;
  Index touching;  // the number of points that touch cells

  template <class Real>
  Order(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box, const Real* points, Index count, int threads)
      : spots(memory<Spot<Share>>(count)) {
    const Index kinds = tiles.count + 1;
    const int pieces = static_cast<int>(std::clamp<Index>(count / std::max(kFewPoints, 8 * kinds), 1, kPieces));
    std::vector<std::uint32_t> next(pieces * kinds);

    // Calls `visit(finder, i, k, place)` for each point: its number, its place in the finder, and the entry of `next`.
    const auto for_each_point = [&](const auto& visit) {
      in_pieces(pieces, threads, [&](int piece) {
        Finder<Real, Share> finder(cloud, tiles, box);
        std::uint32_t* mine = next.data() + piece * kinds;
        const Index end = count * (piece + 1) / pieces;
        for (Index i = count * piece / pieces; i < end; i += finder.kMost) {
          const int some = static_cast<int>(std::min<Index>(end - i, finder.kMost));
          finder.find(points + i * cloud.ndim(), some);
          for (int k = 0; k < some; ++k) visit(finder, i + k, k, mine[finder.tile[k]]);
        }
      });
    };
    for_each_point([](const auto&, Index, int, std::uint32_t& number) { ++number; });
    Index sum = 0;
    for (Index tile = 0; tile < kinds; ++tile) {
      const Index begin = sum;
      for (int piece = 0; piece < pieces; ++piece) {
        const Index number = next[piece * kinds + tile];
        next[piece * kinds + tile] = static_cast<std::uint32_t>(sum);
        sum += number;
      }
      if (tile == tiles.count) {
        touching = begin;
        break;
      }
      const Index parts = ceil_div(sum - begin, kMostOfJob);
      for (Index part = 0; part < parts; ++part) {
        jobs.push_back({tile, begin + (sum - begin) * part / parts, begin + (sum - begin) * (part + 1) / parts});
      }
    }
    for_each_point([&](const auto& finder, Index i, int k, std::uint32_t& place) {
      Spot<Share>& spot = spots[place++];
      for (int axis = 0; axis < Cloud::kMostAxes; ++axis) spot.fractions[axis] = finder.fractions[axis][k];
      spot.cell = static_cast<std::uint32_t>(finder.cell[k]);
      spot.number = static_cast<std::uint32_t>(i);
    });
    if (box.numbers * static_cast<Index>(sizeof(Share)) <= kFirstLevel) return;
    in_pieces(static_cast<int>(jobs.size()), threads, [&](int job) { put_together(box, jobs[job]); });
  }

 private:
  // Puts points of a job beside each other if they touch the same rows of cells, so that these stay in the first level
  // of the cache.
  void put_together(const Box<Share>& box, const Job& job) {
    const Index columns = (box.extent[1] >> kRowBits) + 1, kinds = ((box.extent[0] >> kRowBits) + 1) * columns;
    thread_local std::vector<Index> next;
    thread_local std::vector<Spot<Share>> before;
    next.assign(kinds + 1, 0);
    before.assign(spots.get() + job.begin, spots.get() + job.end);
    const auto kind = [&](const Spot<Share>& spot) {
      const Index plane = spot.cell / box.strides[0], row = spot.cell % box.strides[0] / box.strides[1];
      return (plane >> kRowBits) * columns + (row >> kRowBits);
    };
    for (const auto& spot : before) ++next[kind(spot) + 1];
    for (Index k = 1; k < kinds; ++k) next[k] += next[k - 1];
    for (const auto& spot : before) spots[job.begin + next[kind(spot)]++] = spot;
  }
};

}  // namespace decompops

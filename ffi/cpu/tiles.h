// Points on a block in the order of tiles of cells.

#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cpu/finder.h"
#include "cpu/pool.h"

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
using Storage = std::unique_ptr<T[], Free>;

// Returns memory that is not set to zeros.
template <class T>
Storage<T> storage(Index count) {
  // New pages cost more than they are used here, unless they are large.
  constexpr Index kLargePage = Index{1} << 21;
  const Index bytes = std::max<Index>(count, 1) * sizeof(T), page = bytes < kLargePage ? 64 : kLargePage;
  void* found = std::aligned_alloc(page, ceil_div(bytes, page) * page);
  if (found == nullptr) throw Failure("no memory for " + std::to_string(bytes) + " bytes to put points in order");
#ifdef MADV_HUGEPAGE
  if (page == kLargePage) madvise(found, bytes, MADV_HUGEPAGE);
#endif
  return Storage<T>(static_cast<T*>(found));
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

// Some points of one tile.
struct Job {
  Index tile, begin, end;
};

// Returns whether most points are in the tile of the point before, judged by some of them.
template <class Share, class Real>
bool in_order_of_tiles(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box, const Points<Real>& points) {
  constexpr int kSamples = 16;
  Finder<Real, Share> finder(cloud, tiles, box, points);
  const int some = static_cast<int>(std::min<Index>(finder.kMost, points.live / kSamples));
  int same = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    finder.find(points.live / kSamples * sample, some);
    for (int k = 1; k < some; ++k) same += finder.tile[k] == finder.tile[k - 1];
  }
  return 2 * same > kSamples * some;
}

// All points in the order of their tiles, and in their own order within a tile: by a counting sort. Points that touch no
// cell are at the end.
template <class Share>
struct Order {
  Storage<Spot<Share>> spots;
  std::vector<Job> jobs;
  Index touching;  // the number of points that touch cells
  bool all_at_home;

  template <class Real>
  Order(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box, const Points<Real>& points, int threads)
      : spots(storage<Spot<Share>>(points.live)) {
    const Index count = points.live, kinds = tiles.count + 1;
    std::atomic<bool> astray{false};
    const int pieces = static_cast<int>(std::clamp<Index>(count / std::max(kFewPoints, 8 * kinds), 1, kPieces));
    std::vector<std::uint32_t> next(pieces * kinds);

    // Calls `visit(finder, i, k, place)` for each point: its number, its place in the finder, and the entry of `next`.
    const auto for_each_point = [&](const auto& visit) {
      in_pieces(pieces, threads, [&](int piece) {
        Finder<Real, Share> finder(cloud, tiles, box, points);
        std::uint32_t* mine = next.data() + piece * kinds;
        const Index end = count * (piece + 1) / pieces;
        for (Index i = count * piece / pieces; i < end; i += finder.kMost) {
          const int some = static_cast<int>(std::min<Index>(end - i, finder.kMost));
          finder.find(i, some);
          for (int k = 0; k < some; ++k) visit(finder, i + k, k, mine[finder.tile[k]]);
        }
        if (!finder.all_at_home) astray = true;
      });
    };
    for_each_point([](const auto&, Index, int, std::uint32_t& number) { ++number; });
    all_at_home = !astray;
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

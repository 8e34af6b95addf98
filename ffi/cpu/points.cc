#include "cpu/points.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "cpu/spread.h"
#include "cpu/tiles.h"

namespace decompops {
namespace {

// So many jobs of each thread fill boxes before the boxes are added to the block.
constexpr Index kJobsOfThread = 8;
// The boxes of all fields that are filled together.
constexpr Index kBytesOfBoxes = 1 << 18;
// Numbers of points have four bytes. More points are taken one group after the other.
constexpr Index kGroup = Index{1} << 31;

// Calls `visit(from, to, length)` for each run of cells of a box, from `first` in the block, that are neighbours in the
// block as well, in its cells from `low` to `high` - 1. `from` counts the cells of the box, `to` those of the block.
template <class Visit>
void for_each_run(const Cloud::Axis& axis, Index first, Index extent, Index low, Index high, const Visit& visit) {
  for (Index i = 0; i < extent;) {
    const Index cell = axis.wraps ? wrapped(first + i, axis.length) : first + i;
    const Index length = std::min(extent - i, cell < 0 ? -cell : axis.length - cell);
    if (length <= 0) return;
    const Index begin = std::max(cell, low), end = std::min(cell + length, high);
    if (begin < end) visit(i + begin - cell, begin, end - begin);
    i += length;
  }
}

// Calls `visit(cells of the box, cells of the block, count)` for the rows of a box whose cells along the first axis of
// the grid are from `low` to `high` - 1 in the block.
template <class Share, class Visit>
void for_each_row(const Cloud& cloud, const Tiles& tiles, const Box<Share>& box, Index tile, Index low, Index high,
                  const Visit& visit) {
  Index first[Cloud::kMostAxes];
  tiles.locate(tile, first);
  const auto along = [&](int i, const auto& visit) {
    const Cloud::Axis& axis = cloud.axes[i];
    const bool cut = i == cloud.first_axis;
    for_each_run(axis, first[i], box.extent[i], cut ? low : 0, cut ? high : axis.length, visit);
  };
  along(0, [&](Index x, Index to_x, Index planes) {
    along(1, [&](Index y, Index to_y, Index rows) {
      along(2, [&](Index z, Index to_z, Index cells) {
        for (Index p = 0; p < planes; ++p) {
          for (Index q = 0; q < rows; ++q) {
            const Index from = (x + p) * box.strides[0] + (y + q) * box.strides[1] + z;
            const Index to = ((to_x + p) * cloud.axes[1].length + to_y + q) * cloud.axes[2].length + to_z;
            visit(from, to, cells);
          }
        }
      });
    });
  });
}

// Returns the arrays from field `b` on.
template <class Share>
PointArrays<Share> from_field(const PointArrays<Share>& arrays, Index b, int parts) {
  return {arrays.values + b * arrays.stride * parts, arrays.stride, arrays.along};
}

template <class Share>
struct Work {
  const Cloud& cloud;
  const Tiles tiles;
  const int parts, threads;
  const Box<Share> box;
  const Index fields;  // so many fields together

  Work(const Cloud& cloud, Index batch, int parts, int threads)
      : cloud(cloud),
        tiles(cloud),
        parts(parts),
        threads(std::max(1, std::min(threads, Pool::get().most_threads()))),
        box(cloud, tiles.lengths, parts),
        fields(std::clamp<Index>(kBytesOfBoxes / (box.numbers * sizeof(Share)), 1, std::max<Index>(batch, 1))) {}

  // Returns whether all points are at home; otherwise, nothing is deposited.
  template <class Real>
  bool deposit(Action action, const Points<Real>& points, const PointArrays<Share>& arrays, Index batch,
               Share* block) const {
    const Order<Share> order(cloud, tiles, box, points, threads);
    if (!order.all_at_home) return false;
    const Spread<Share> spread = spread_for<Share>(cloud, action, parts);
    const Index jobs = order.jobs.size(), most = std::min(jobs, threads > 1 ? threads * kJobsOfThread : 1);
    const auto boxes = storage<Share>(most * fields * box.numbers);
    const Index cells = cloud.cells(), length = cloud.axes[cloud.first_axis].length;
    const int cuts = static_cast<int>(threads > 1 ? std::min<Index>(length, 64 * threads) : 1);
    for (Index b = 0; b < batch; b += fields) {
      const Index some = std::min(fields, batch - b);
      for (Index begin = 0; begin < jobs; begin += most) {
        const Index end = std::min(jobs, begin + most);
        in_pieces(static_cast<int>(end - begin), threads, [&](int k) {
          const Job& job = order.jobs[begin + k];
          Share* own = boxes.get() + k * fields * box.numbers;
          std::fill_n(own, some * box.numbers, Share(0));
          spread(box, order.spots.get() + job.begin, job.end - job.begin, from_field(arrays, b, parts), some, own);
        });
        in_pieces(cuts, threads, [&](int cut) {
          const Index low = length * cut / cuts, high = length * (cut + 1) / cuts;
          for (Index k = begin; k < end; ++k) {
            const Share* own = boxes.get() + (k - begin) * fields * box.numbers;
            for_each_row(cloud, tiles, box, order.jobs[k].tile, low, high, [&](Index from, Index to, Index n) {
              for (Index f = 0; f < some; ++f) {
                const Share* source = own + f * box.numbers + from * parts;
                Share* target = block + ((b + f) * cells + to) * parts;
                for (Index j = 0; j < n * parts; ++j) target[j] += source[j];
              }
            });
          }
        });
      }
    }
    return true;
  }

  // Returns whether all points are at home; otherwise, nothing is read.
  template <class Real>
  bool read(Action action, const Points<Real>& points, const Share* block, Index batch,
            const PointArrays<Share>& arrays) const {
    const Order<Share> order(cloud, tiles, box, points, threads);
    if (!order.all_at_home) return false;
    const Spread<Share> spread = spread_for<Share>(cloud, action, parts);
    const Index cells = cloud.cells(), length = cloud.axes[cloud.first_axis].length;
    for (Index i = order.touching; i < points.live && action != Action::find_slopes; ++i) {
      for (Index b = 0; b < batch; ++b) {
        std::fill_n(arrays.values + (b * arrays.stride + order.spots[i].number) * parts, parts, Share(0));
      }
    }
    in_pieces(static_cast<int>(order.jobs.size()), threads, [&](int k) {
      const Job& job = order.jobs[k];
      thread_local std::vector<Share> own;
      own.resize(fields * box.numbers);
      for (Index b = 0; b < batch; b += fields) {
        const Index some = std::min(fields, batch - b);
        std::fill_n(own.data(), some * box.numbers, Share(0));
        for_each_row(cloud, tiles, box, job.tile, 0, length, [&](Index to, Index from, Index n) {
          for (Index f = 0; f < some; ++f) {
            std::copy_n(block + ((b + f) * cells + from) * parts, n * parts, own.data() + f * box.numbers + to * parts);
          }
        });
        spread(box, order.spots.get() + job.begin, job.end - job.begin, from_field(arrays, b, parts), some, own.data());
      }
    });
    return true;
  }
};

// Reads points in their own order, from one box around the whole block. This needs no sort, and neighbouring points find
// their cells in the cache.
template <class Share>
struct Direct {
  // The fields that are read together.
  static constexpr Index kFields = 4;

  const Cloud& cloud;
  const Tiles tiles;
  const int parts, threads;
  const Box<Share> box;

  Direct(const Cloud& cloud, int parts, int threads)
      : cloud(cloud), tiles(cloud, true), parts(parts), threads(threads), box(cloud, tiles.lengths, parts) {}

  // Whether the box is worth its time for so many points, and integers of four bytes count its cells.
  bool is_worth(Index count) const { return box.numbers <= 8 * parts * count && box.numbers < (Index{1} << 31); }

  // Returns whether all points are at home; otherwise, what is read has no meaning.
  template <class Real>
  bool read(Action action, const Points<Real>& points, const Share* block, Index batch,
            const PointArrays<Share>& arrays) const {
    const Index count = points.live;
    const Spread<Share> spread = spread_for<Share>(cloud, action, parts);
    std::atomic<bool> astray{false};
    const auto own = storage<Share>(std::min(kFields, batch) * box.numbers);
    const Index length = cloud.axes[cloud.first_axis].length;
    const int cuts = static_cast<int>(std::min<Index>(length, kPieces));
    const int pieces = count < kFewPoints ? 1 : kPieces;
    for (Index b = 0; b < batch; b += kFields) {
      const Index some = std::min(kFields, batch - b);
      for (Index f = 0; f < some; ++f) std::fill_n(own.get() + f * box.numbers, box.numbers, Share(0));
      in_pieces(cuts, threads, [&](int cut) {
        const Index low = length * cut / cuts, high = length * (cut + 1) / cuts;
        for_each_row(cloud, tiles, box, 0, low, high, [&](Index to, Index from, Index n) {
          for (Index f = 0; f < some; ++f) {
            const Share* source = block + ((b + f) * cloud.cells() + from) * parts;
            std::copy_n(source, n * parts, own.get() + f * box.numbers + to * parts);
          }
        });
      });
      in_pieces(pieces, threads, [&](int piece) {
        const Index begin = count * piece / pieces, end = count * (piece + 1) / pieces;
        const auto these = from_field(arrays, b, parts);
        const bool zeros = action != Action::find_slopes;
        if (!read_piece(points, begin, end, spread, these, some, own.get(), zeros)) astray = true;
      });
    }
    return !astray;
  }

 private:
  template <class Real>
  bool read_piece(const Points<Real>& points, Index begin, Index end, Spread<Share> spread,
                  const PointArrays<Share>& arrays, Index fields, Share* cells, bool zeros) const {
    Finder<Real, Share> finder(cloud, tiles, box, points);
    Spot<Share> spots[finder.kMost];
    for (Index i = begin; i < end; i += finder.kMost) {
      const int some = static_cast<int>(std::min<Index>(end - i, finder.kMost));
      finder.find(i, some);
      Index touching = 0;
      for (int k = 0; k < some; ++k) {
        if (finder.tile[k] != 0) {
          for (Index f = 0; f < fields && zeros; ++f) {
            std::fill_n(arrays.values + (f * arrays.stride + i + k) * parts, parts, Share(0));
          }
          continue;
        }
        Spot<Share>& spot = spots[touching++];
        for (int axis = 0; axis < Cloud::kMostAxes; ++axis) spot.fractions[axis] = finder.fractions[axis][k];
        spot.cell = static_cast<std::uint32_t>(finder.cell[k]);
        spot.number = static_cast<std::uint32_t>(i + k);
      }
      spread(box, spots, touching, arrays, fields, cells);
    }
    return finder.all_at_home;
  }
};

template <class Value>
constexpr int kParts = sizeof(Value) / sizeof(typename RealOf<Value>::type);

// Sets `count` numbers to `value`, on several threads.
template <class Value>
void fill(Value* numbers, Index count, Value value, int threads) {
  const int pieces = count < kFewPoints ? 1 : kPieces;
  in_pieces(pieces, threads, [&](int piece) {
    std::fill(numbers + count * piece / pieces, numbers + count * (piece + 1) / pieces, value);
  });
}

// Calls `visit(points, number of the first one)` for the points in groups, as long as it returns true. Returns whether it
// always did.
template <class Real, class Visit>
bool for_each_group(const Cloud& cloud, const Points<Real>& points, const Visit& visit) {
  Points<Real> group = points;
  for (Index i = 0; i < points.live; i += kGroup) {
    group.positions = points.positions + i * cloud.ndim();
    group.live = std::min(kGroup, points.live - i);
    if (!visit(group, i)) return false;
  }
  return true;
}

template <class Real, class Value, class Share = typename RealOf<Value>::type>
bool read_points(Action action, const Cloud& cloud, const Points<Real>& points, const Value* block, Index batch,
                 const PointArrays<Share>& arrays, int threads) {
  const Work<Share> work(cloud, batch, kParts<Value>, threads);
  const Direct<Share> direct(cloud, kParts<Value>, work.threads);
  const auto* from = reinterpret_cast<const Share*>(block);
  return for_each_group(cloud, points, [&](const Points<Real>& group, Index i) {
    const PointArrays<Share> to{arrays.values + i * kParts<Value>, arrays.stride, arrays.along + i * Cloud::kMostAxes};
    const bool in_order = direct.is_worth(group.live) && in_order_of_tiles(cloud, work.tiles, work.box, group);
    return in_order ? direct.read(action, group, from, batch, to) : work.read(action, group, from, batch, to);
  });
}

template <class Share>
constexpr Share kNan = std::numeric_limits<Share>::quiet_NaN();

}  // namespace

template <class Real, class Value>
void deposit(const Cloud& cloud, const Points<Real>& points, const Value* values, Index batch, Value* block,
             int threads, const typename RealOf<Value>::type* along) {
  using Share = typename RealOf<Value>::type;
  const Work<Share> work(cloud, batch, kParts<Value>, threads);
  fill(block, batch * cloud.cells(), Value(0), work.threads);
  const Action action = along == nullptr ? Action::deposit : Action::deposit_along;
  // A deposit does not change the arrays of points.
  auto* from = const_cast<Share*>(reinterpret_cast<const Share*>(values));
  const bool all_at_home = for_each_group(cloud, points, [&](const Points<Real>& group, Index i) {
    const PointArrays<Share> arrays{from + i * kParts<Value>, points.count,
                                    const_cast<Share*>(along) + i * Cloud::kMostAxes};
    return work.deposit(action, group, arrays, batch, reinterpret_cast<Share*>(block));
  });
  if (!all_at_home) fill(block, batch * cloud.cells(), Value(kNan<Share>), work.threads);
}

template <class Real, class Value>
void read(const Cloud& cloud, const Points<Real>& points, const Value* block, Index batch, Value* values, int threads,
          const typename RealOf<Value>::type* along) {
  using Share = typename RealOf<Value>::type;
  const Action action = along == nullptr ? Action::read : Action::read_along;
  const PointArrays<Share> arrays{reinterpret_cast<Share*>(values), points.count, const_cast<Share*>(along)};
  for (Index b = 0; b < batch; ++b) {
    fill(values + b * points.count + points.live, points.count - points.live, Value(0), threads);
  }
  if (read_points(action, cloud, points, block, batch, arrays, threads)) return;
  fill(values, batch * points.count, Value(kNan<Share>), threads);
}

template <class Real, class Value>
void find_slopes(const Cloud& cloud, const Points<Real>& points, const Value* values, const Value* block, Index batch,
                 Value* slopes, int threads) {
  using Share = typename RealOf<Value>::type;
  const auto* from = reinterpret_cast<const Share*>(values);
  auto* to = reinterpret_cast<Share*>(slopes);
  fill(to, points.count * Cloud::kMostAxes, Share(0), threads);
  const PointArrays<Share> arrays{const_cast<Share*>(from), points.count, to};
  if (read_points(Action::find_slopes, cloud, points, block, batch, arrays, threads)) return;
  fill(to, points.count * Cloud::kMostAxes, kNan<Share>, threads);
}

#define DECOMPOPS_POINTS(Real, Value)                                                        \
  template void deposit(const Cloud&, const Points<Real>&, const Value*, Index, Value*, int, \
                        const RealOf<Value>::type*);                                         \
  template void read(const Cloud&, const Points<Real>&, const Value*, Index, Value*, int, const RealOf<Value>::type*);
#define DECOMPOPS_SLOPES(Real, Value) \
  template void find_slopes(const Cloud&, const Points<Real>&, const Value*, const Value*, Index, Value*, int);
DECOMPOPS_POINTS(float, float)
DECOMPOPS_POINTS(float, double)
DECOMPOPS_POINTS(float, std::complex<float>)
DECOMPOPS_POINTS(float, std::complex<double>)
DECOMPOPS_POINTS(double, float)
DECOMPOPS_POINTS(double, double)
DECOMPOPS_POINTS(double, std::complex<float>)
DECOMPOPS_POINTS(double, std::complex<double>)
DECOMPOPS_SLOPES(float, float)
DECOMPOPS_SLOPES(float, double)
DECOMPOPS_SLOPES(double, float)
DECOMPOPS_SLOPES(double, double)
#undef DECOMPOPS_POINTS
#undef DECOMPOPS_SLOPES

}  // namespace decompops

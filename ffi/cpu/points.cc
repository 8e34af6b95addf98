#include "cpu/points.h"

#include <algorithm>
#include <type_traits>
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
template <class Value>
struct RealOf {
  using type = Value;
};
template <class Real>
struct RealOf<std::complex<Real>> {
  using type = Real;
};

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

  template <class Real>
  void deposit(const Real* points, Index count, const Share* values, Index stride, Index batch, Share* block) const {
    const Order<Share> order(cloud, tiles, box, points, count, threads);
    const Spread<Share> spread = spread_for<Share>(cloud, true, parts);
    const Index jobs = order.jobs.size(), most = std::min(jobs, threads > 1 ? threads * kJobsOfThread : 1);
    const auto boxes = memory<Share>(most * fields * box.numbers);
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
          // A deposit does not change the values.
          Share* from = const_cast<Share*>(values) + b * stride * parts;
          spread(box, order.spots.get() + job.begin, job.end - job.begin, from, stride, some, own);
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
  }

  template <class Real>
  void read(const Real* points, Index count, const Share* block, Index batch, Share* values, Index stride) const {
    const Order<Share> order(cloud, tiles, box, points, count, threads);
    const Spread<Share> spread = spread_for<Share>(cloud, false, parts);
    const Index cells = cloud.cells(), length = cloud.axes[cloud.first_axis].length;
    for (Index i = order.touching; i < count; ++i) {
      for (Index b = 0; b < batch; ++b)
        std::fill_n(values + (b * stride + order.spots[i].number) * parts, parts, Share(0));
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
        spread(box, order.spots.get() + job.begin, job.end - job.begin, values + b * stride * parts, stride, some,
               own.data());
      }
    });
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

  template <class Real>
  void read(const Real* points, Index count, const Share* block, Index batch, Share* values, Index stride) const {
    const Spread<Share> spread = spread_for<Share>(cloud, false, parts);
    const auto own = memory<Share>(std::min(kFields, batch) * box.numbers);
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
      Share* to = values + b * stride * parts;
      in_pieces(pieces, threads, [&](int piece) {
        read_piece(points, count * piece / pieces, count * (piece + 1) / pieces, spread, to, stride, some, own.get());
      });
    }
  }

 private:
  template <class Real>
  void read_piece(const Real* points, Index begin, Index end, Spread<Share> spread, Share* values, Index stride,
                  Index fields, Share* cells) const {
    Finder<Real, Share> finder(cloud, tiles, box);
    Spot<Share> spots[finder.kMost];
    for (Index i = begin; i < end; i += finder.kMost) {
      const int some = static_cast<int>(std::min<Index>(end - i, finder.kMost));
      finder.find(points + i * cloud.ndim(), some);
      Index touching = 0;
      for (int k = 0; k < some; ++k) {
        if (finder.tile[k] != 0) {
          for (Index f = 0; f < fields; ++f) std::fill_n(values + (f * stride + i + k) * parts, parts, Share(0));
          continue;
        }
        Spot<Share>& spot = spots[touching++];
        for (int axis = 0; axis < Cloud::kMostAxes; ++axis) spot.fractions[axis] = finder.fractions[axis][k];
        spot.cell = static_cast<std::uint32_t>(finder.cell[k]);
        spot.number = static_cast<std::uint32_t>(i + k);
      }
      spread(box, spots, touching, values, stride, fields, cells);
    }
  }
};

template <class Value>
constexpr int kParts = sizeof(Value) / sizeof(typename RealOf<Value>::type);

}  // namespace

template <class Real, class Value>
void deposit(const Cloud& cloud, const Real* points, Index count, const Value* values, Index batch, Value* block,
             int threads) {
  using Share = typename RealOf<Value>::type;
  const Work<Share> work(cloud, batch, kParts<Value>, threads);
  const Index numbers = batch * cloud.cells();
  const int pieces = numbers < kFewPoints ? 1 : kPieces;
  in_pieces(pieces, work.threads, [&](int piece) {
    std::fill(block + numbers * piece / pieces, block + numbers * (piece + 1) / pieces, Value(0));
  });
  for (Index i = 0; i < count; i += kGroup) {
    const auto* from = reinterpret_cast<const Share*>(values + i);
    work.deposit(points + i * cloud.ndim(), std::min(kGroup, count - i), from, count, batch,
                 reinterpret_cast<Share*>(block));
  }
}

template <class Real, class Value>
void read(const Cloud& cloud, const Real* points, Index count, const Value* block, Index batch, Value* values,
          int threads) {
  using Share = typename RealOf<Value>::type;
  const Work<Share> work(cloud, batch, kParts<Value>, threads);
  const Direct<Share> direct(cloud, kParts<Value>, work.threads);
  const auto* from = reinterpret_cast<const Share*>(block);
  for (Index i = 0; i < count; i += kGroup) {
    const Real* some = points + i * cloud.ndim();
    const Index number = std::min(kGroup, count - i);
    auto* to = reinterpret_cast<Share*>(values + i);
    if (direct.is_worth(number) && in_order_of_tiles(cloud, work.tiles, work.box, some, number)) {
      direct.read(some, number, from, batch, to, count);
    } else {
      work.read(some, number, from, batch, to, count);
    }
  }
}

#define DECOMPOPS_POINTS(Real, Value)                                                        \
  template void deposit(const Cloud&, const Real*, Index, const Value*, Index, Value*, int); \
  template void read(const Cloud&, const Real*, Index, const Value*, Index, Value*, int);
DECOMPOPS_POINTS(float, float)
DECOMPOPS_POINTS(float, double)
DECOMPOPS_POINTS(float, std::complex<float>)
DECOMPOPS_POINTS(float, std::complex<double>)
DECOMPOPS_POINTS(double, float)
DECOMPOPS_POINTS(double, double)
DECOMPOPS_POINTS(double, std::complex<float>)
DECOMPOPS_POINTS(double, std::complex<double>)
#undef DECOMPOPS_POINTS

}  // namespace decompops

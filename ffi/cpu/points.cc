#include "cpu/points.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/pool.h"

namespace decompops {
namespace {

// Points are cut into this many pieces of work, whatever the number of threads.
constexpr int kPieces = 64;
// With fewer points, waking a thread takes longer than the work.
constexpr Index kFewPoints = 4096;
// Coordinates beyond this are no cells of any block; they may be infinite or NaN.
constexpr double kFar = 1e15;

template <class Value>
struct RealOf {
  using type = Value;
};
template <class Real>
struct RealOf<std::complex<Real>> {
  using type = Real;
};

// One axis of a cloud, in the precision of the coordinates.
template <class Real>
struct Line {
  Index length;
  bool wraps;
  int width, powers;
  std::vector<Real> coefficients;

  explicit Line(const Cloud::Axis& axis)
      : length(axis.length),
        wraps(axis.wraps),
        width(axis.width),
        powers(static_cast<int>(axis.coefficients.size()) / axis.width),
        coefficients(axis.coefficients.begin(), axis.coefficients.end()) {}

  // Returns the first cell that a point touches, and the fraction; false for a coordinate that is no cell.
  bool locate(Real s, Index& first, Real& fraction) const {
    const Real shifted = s - (Real(width) / 2 - 1);
    if (!(shifted > -kFar && shifted < kFar)) return false;
    first = static_cast<Index>(shifted);
    if (static_cast<Real>(first) > shifted) --first;
    fraction = shifted - static_cast<Real>(first);
    return true;
  }

  template <int W, class Share>
  void find_shares(Real t, Share* shares) const {
    const int count = W > 0 ? W : width;
    Real sums[W > 0 ? W : Cloud::kMostWidth];
    const Real* row = coefficients.data();
    for (int j = 0; j < count; ++j) sums[j] = row[j];
    for (int power = 1; power < powers; ++power) {
      row += count;
      for (int j = 0; j < count; ++j) sums[j] = sums[j] * t + row[j];
    }
    for (int j = 0; j < count; ++j) shares[j] = static_cast<Share>(sums[j]);
  }
};

Index wrapped(Index cell, Index length) {
  if (cell >= 0 && cell < length) return cell;
  const Index rest = cell % length;
  return rest < 0 ? rest + length : rest;
}

// The cells that one point touches, and their shares along each axis.
template <int W, class Real, class Share>
struct Touched {
  static constexpr int kWidth = W > 0 ? W : Cloud::kMostWidth;
  Index offsets[3][kWidth];
  Share shares[3][kWidth];
  Index first[3];
  int widths[3] = {1, 1, 1};
  bool inside = true;  // no cell is outside of the block, so the cells along the last axis are neighbours

  // Returns false for a point that touches no cell.
  bool find(const std::vector<Line<Real>>& lines, const Real* point) {
    const int ndim = static_cast<int>(lines.size()), skipped = 3 - ndim;
    inside = true;
    for (int i = 0; i < skipped; ++i) {
      first[i] = 0;
      shares[i][0] = 1;
    }
    for (int i = 0; i < ndim; ++i) {
      const Line<Real>& line = lines[i];
      Real t;
      if (!line.locate(point[i], first[skipped + i], t)) return false;
      line.template find_shares<W>(t, shares[skipped + i]);
      widths[skipped + i] = W > 0 ? W : line.width;
      inside &= first[skipped + i] >= 0 && first[skipped + i] + widths[skipped + i] <= line.length;
    }
    return true;
  }

  // Finds each cell, for a point that also touches cells outside of the block: these are at the other end, or have no
  // share.
  void find_cells(const std::vector<Line<Real>>& lines, const Index* strides) {
    const int skipped = 3 - static_cast<int>(lines.size());
    for (int i = 0; i < 3; ++i) {
      for (int j = 0; j < widths[i]; ++j) {
        Index cell = first[i] + j;
        if (i >= skipped && lines[i - skipped].wraps) cell = wrapped(cell, lines[i - skipped].length);
        const bool exists = i < skipped || (cell >= 0 && cell < lines[i - skipped].length);
        offsets[i][j] = exists ? cell * strides[i] : 0;
        if (!exists) shares[i][j] = 0;
      }
    }
  }
};

// Calls `body(piece)` for each piece from 0 to `pieces` - 1, on several threads.
template <class Body>
void in_pieces(int pieces, int threads, const Body& body) {
  threads = std::min(threads, Pool::get().most_threads());
  if (threads <= 1 || pieces <= 1) {
    for (int piece = 0; piece < pieces; ++piece) body(piece);
  } else {
    Pool::get().run(pieces, threads, [&](int piece, int) { body(piece); });
  }
}

// The points in the order of the slabs of cells along the first axis of the grid that they touch first. A slab is so
// thick that a point touches its own slab and the next one only. So all slabs with even numbers can be filled at the
// same time, and then all others.
struct Slabs {
  std::vector<Index> order;
  std::vector<Index> starts;  // of each slab in `order`, and the end

  int count() const { return static_cast<int>(starts.size()) - 1; }

  template <class Real>
  Slabs(const Cloud& cloud, const Real* points, Index count, int threads) {
    const Cloud::Axis& axis = cloud.axes[cloud.first_axis];
    const Line<Real> line(axis);
    const Index thickness = std::max<Index>(axis.width, ceil_div(axis.length, kPieces));
    Index slabs = std::max<Index>(axis.length / thickness, 1);
    if (slabs > 1) slabs -= slabs % 2;  // the last slab reaches the first one if the axis wraps
    const int ndim = cloud.ndim(), pieces = count < kFewPoints ? 1 : kPieces;
    std::vector<std::uint8_t> slab(count);
    std::vector<Index> next(pieces * slabs);
    in_pieces(pieces, threads, [&](int piece) {
      Index* mine = next.data() + piece * slabs;
      for (Index i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) {
        Index first;
        Real fraction;
        if (!line.locate(points[i * ndim], first, fraction)) first = 0;
        first = axis.wraps ? wrapped(first, axis.length) : std::clamp<Index>(first, 0, axis.length - 1);
        slab[i] = static_cast<std::uint8_t>(std::min(first / thickness, slabs - 1));
        ++mine[slab[i]];
      }
    });
    Index sum = 0;
    for (Index s = 0; s < slabs; ++s) {
      starts.push_back(sum);
      for (int piece = 0; piece < pieces; ++piece) {
        const Index number = next[piece * slabs + s];
        next[piece * slabs + s] = sum;
        sum += number;
      }
    }
    starts.push_back(sum);
    order.resize(count);
    in_pieces(pieces, threads, [&](int piece) {
      Index* mine = next.data() + piece * slabs;
      for (Index i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) order[mine[slab[i]]++] = i;
    });
  }
};

template <class Real>
std::vector<Line<Real>> lines_of(const Cloud& cloud) {
  return std::vector<Line<Real>>(cloud.axes.begin() + cloud.first_axis, cloud.axes.end());
}

template <int W, class Real, class Value>
void deposit_all(const Cloud& cloud, const Real* points, Index count, const Value* values, Index batch, Value* block,
                 int threads) {
  using Share = typename RealOf<Value>::type;
  const Index cells = cloud.cells();
  const Index strides[3] = {cloud.axes[1].length * cloud.axes[2].length, cloud.axes[2].length, 1};
  const auto lines = lines_of<Real>(cloud);
  const int ndim = cloud.ndim(), width = W > 0 ? W : cloud.axes[2].width;
  std::fill(block, block + batch * cells, Value(0));
  const Slabs slabs(cloud, points, count, threads);
  const auto fill = [&](int slab) {
    Touched<W, Real, Share> at;
    for (Index k = slabs.starts[slab]; k < slabs.starts[slab + 1]; ++k) {
      const Index i = slabs.order[k];
      if (!at.find(lines, points + i * ndim)) continue;
      if (!at.inside) at.find_cells(lines, strides);
      const Index first = at.first[0] * strides[0] + at.first[1] * strides[1] + at.first[2];
      for (Index b = 0; b < batch; ++b) {
        const Value value = values[b * count + i];
        Value* cell = block + b * cells;
        for (int p = 0; p < at.widths[0]; ++p) {
          for (int q = 0; q < at.widths[1]; ++q) {
            const Value part = value * (at.shares[0][p] * at.shares[1][q]);
            if (at.inside) {
              Value* row = cell + first + p * strides[0] + q * strides[1];
              for (int j = 0; j < width; ++j) row[j] += part * at.shares[2][j];
            } else {
              Value* row = cell + at.offsets[0][p] + at.offsets[1][q];
              for (int j = 0; j < width; ++j) row[at.offsets[2][j]] += part * at.shares[2][j];
            }
          }
        }
      }
    }
  };
  const int number = slabs.count();
  in_pieces((number + 1) / 2, threads, [&](int pair) { fill(2 * pair); });
  in_pieces(number / 2, threads, [&](int pair) { fill(2 * pair + 1); });
}

template <int W, class Real, class Value>
void read_all(const Cloud& cloud, const Real* points, Index count, const Value* block, Index batch, Value* values,
              int threads) {
  using Share = typename RealOf<Value>::type;
  const Index cells = cloud.cells();
  const Index strides[3] = {cloud.axes[1].length * cloud.axes[2].length, cloud.axes[2].length, 1};
  const auto lines = lines_of<Real>(cloud);
  const int ndim = cloud.ndim(), width = W > 0 ? W : cloud.axes[2].width;
  const int pieces = count < kFewPoints ? 1 : kPieces;
  in_pieces(pieces, threads, [&](int piece) {
    Touched<W, Real, Share> at;
    for (Index i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) {
      const bool touches = at.find(lines, points + i * ndim);
      if (touches && !at.inside) at.find_cells(lines, strides);
      const Index first = touches ? at.first[0] * strides[0] + at.first[1] * strides[1] + at.first[2] : 0;
      for (Index b = 0; b < batch; ++b) {
        const Value* cell = block + b * cells;
        Value sum(0);
        for (int p = 0; touches && p < at.widths[0]; ++p) {
          for (int q = 0; q < at.widths[1]; ++q) {
            Value along(0);
            if (at.inside) {
              const Value* row = cell + first + p * strides[0] + q * strides[1];
              for (int j = 0; j < width; ++j) along += row[j] * at.shares[2][j];
            } else {
              const Value* row = cell + at.offsets[0][p] + at.offsets[1][q];
              for (int j = 0; j < width; ++j) along += row[at.offsets[2][j]] * at.shares[2][j];
            }
            sum += along * (at.shares[0][p] * at.shares[1][q]);
          }
        }
        values[b * count + i] = sum;
      }
    }
  });
}

// Calls `run` with the width of the window as a constant of the compiler, for the widths of common windows; 0 for others.
template <class Run>
void with_width(int width, const Run& run) {
  switch (width) {
    case 1: return run(std::integral_constant<int, 1>());
    case 2: return run(std::integral_constant<int, 2>());
    case 3: return run(std::integral_constant<int, 3>());
    case 4: return run(std::integral_constant<int, 4>());
    case 7: return run(std::integral_constant<int, 7>());
    default: return run(std::integral_constant<int, 0>());
  }
}

}  // namespace

template <class Real, class Value>
void deposit(const Cloud& cloud, const Real* points, Index count, const Value* values, Index batch, Value* block,
             int threads) {
  with_width(cloud.axes[2].width, [&](auto width) {
    deposit_all<decltype(width)::value>(cloud, points, count, values, batch, block, threads);
  });
}

template <class Real, class Value>
void read(const Cloud& cloud, const Real* points, Index count, const Value* block, Index batch, Value* values,
          int threads) {
  with_width(cloud.axes[2].width, [&](auto width) {
    read_all<decltype(width)::value>(cloud, points, count, block, batch, values, threads);
  });
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

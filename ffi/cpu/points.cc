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

// The cells that one point touches, and their shares along each axis. `find` moves it to a point.
template <int W, class Real, class Share>
class Touched {
 public:
  explicit Touched(const Cloud& cloud)
      : width_(W > 0 ? W : cloud.axes[2].width),
        skipped_(cloud.first_axis),
        strides_{cloud.axes[1].length * cloud.axes[2].length, cloud.axes[2].length, 1},
        lines_(cloud.axes.begin(), cloud.axes.end()) {
    for (int i = skipped_; i < 3; ++i) widths_[i] = width_;
  }

  // Returns false for a point that touches no cell.
  bool find(const Real* point) {
    inside_ = true;
    for (int i = skipped_; i < 3; ++i) {
      Real t;
      if (!lines_[i].locate(point[i - skipped_], first_[i], t)) return false;
      lines_[i].template find_shares<W>(t, shares_[i]);
      inside_ &= first_[i] >= 0 && first_[i] + widths_[i] <= lines_[i].length;
    }
    if (!inside_) find_cells();
    start_ = inside_ ? first_[0] * strides_[0] + first_[1] * strides_[1] + first_[2] : 0;
    return true;
  }

  // Calls `visit(row, share)` for each row of cells along the last axis. Number j of its cells is `cell(row, j)`.
  template <class Number, class Visit>
  void for_each_row(Number* block, const Visit& visit) const {
    for (int p = 0; p < widths_[0]; ++p) {
      for (int q = 0; q < widths_[1]; ++q) {
        const Index offset = inside_ ? start_ + p * strides_[0] + q * strides_[1] : offsets_[0][p] + offsets_[1][q];
        visit(block + offset, shares_[0][p] * shares_[1][q]);
      }
    }
  }

  // Calls `visit(cell, share)` for each cell of a row.
  template <class Number, class Visit>
  void for_each_cell(Number* row, const Visit& visit) const {
    if (inside_) {
      for (int j = 0; j < width_; ++j) visit(row[j], shares_[2][j]);
    } else {
      for (int j = 0; j < width_; ++j) visit(row[offsets_[2][j]], shares_[2][j]);
    }
  }

 private:
  // Finds each cell, for a point that also touches cells outside of the block: these are at the other end, or have no
  // share.
  void find_cells() {
    for (int i = skipped_; i < 3; ++i) {
      for (int j = 0; j < widths_[i]; ++j) {
        const Index cell = lines_[i].wraps ? wrapped(first_[i] + j, lines_[i].length) : first_[i] + j;
        const bool exists = cell >= 0 && cell < lines_[i].length;
        offsets_[i][j] = exists ? cell * strides_[i] : 0;
        if (!exists) shares_[i][j] = 0;
      }
    }
  }

  static constexpr int kWidth = W > 0 ? W : Cloud::kMostWidth;
  const int width_, skipped_;
  const Index strides_[3];
  const std::vector<Line<Real>> lines_;
  int widths_[3] = {1, 1, 1};
  // Axes that the grid does not have begin at their only cell, with the share 1.
  Index first_[3] = {0, 0, 0}, offsets_[3][kWidth] = {}, start_ = 0;
  Share shares_[3][kWidth] = {{1}, {1}, {1}};
  bool inside_ = true;  // no cell is outside of the block, so the cells along the last axis are neighbours
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

template <int W, class Real, class Value>
void deposit_all(const Cloud& cloud, const Real* points, Index count, const Value* values, Index batch, Value* block,
                 int threads) {
  using Share = typename RealOf<Value>::type;
  const Index cells = cloud.cells();
  std::fill(block, block + batch * cells, Value(0));
  const Slabs slabs(cloud, points, count, threads);
  const auto fill = [&](int slab) {
    Touched<W, Real, Share> touched(cloud);
    for (Index k = slabs.starts[slab]; k < slabs.starts[slab + 1]; ++k) {
      const Index i = slabs.order[k];
      if (!touched.find(points + i * cloud.ndim())) continue;
      for (Index b = 0; b < batch; ++b) {
        const Value value = values[b * count + i];
        touched.for_each_row(block + b * cells, [&](Value* row, Share share) {
          const Value part = value * share;
          touched.for_each_cell(row, [&](Value& cell, Share last) { cell += part * last; });
        });
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
  const int pieces = count < kFewPoints ? 1 : kPieces;
  in_pieces(pieces, threads, [&](int piece) {
    Touched<W, Real, Share> touched(cloud);
    for (Index i = count * piece / pieces; i < count * (piece + 1) / pieces; ++i) {
      const bool reads = touched.find(points + i * cloud.ndim());
      for (Index b = 0; b < batch; ++b) {
        Value sum(0);
        if (reads) {
          touched.for_each_row(block + b * cells, [&](const Value* row, Share share) {
            Value along(0);
            touched.for_each_cell(row, [&](const Value& cell, Share last) { along += cell * last; });
            sum += along * share;
          });
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

// Points that add values to a block of cells, and that read a block.

#pragma once

#include <array>
#include <complex>
#include <limits>
#include <vector>

#include "common/plan.h"

namespace decompops {

// How points touch the cells of a block of at most three axes. `Cloud` in decompops/_core/points.py explains the terms.
struct Cloud {
  static constexpr int kMostAxes = 3;
  static constexpr int kMostWidth = 16;
  static constexpr int kMostSlopes = 4;  // the widest window whose derivatives have a kernel

  // Along one axis.
  struct Axis {
    Index length = 1;
    bool wraps = true;
    int width = 1;
    // For each power of the fraction, from the highest to the constant, one coefficient for each touched cell.
    std::vector<double> coefficients{1.0};
  };

  std::array<Axis, kMostAxes> axes;  // grids of fewer axes begin with axes of one cell
  int first_axis = 0;                // the first axis of the grid

  int ndim() const { return kMostAxes - first_axis; }
  Index cells() const { return axes[0].length * axes[1].length * axes[2].length; }
};

template <class Value>
struct RealOf {
  using type = Value;
};
template <class Real>
struct RealOf<std::complex<Real>> {
  using type = Real;
};

// Along one axis, how a position becomes a coordinate in cells of the block. `Frame` in decompops/_core/points.py
// explains the terms.
template <class Real>
struct Frame {
  static constexpr int kNumbers = 7;  // without the scale

  Real scale = 1;
  Real first = 0, period = 0, start = 0, low = -std::numeric_limits<Real>::infinity(),
       high = std::numeric_limits<Real>::infinity(), tolerance = 0, shift = 0;
};

// The positions of points lie side by side. Only the first `live` of `count` slots hold a point.
template <class Real>
struct Points {
  const Real* positions;
  Index count, live;
  Frame<Real> frames[Cloud::kMostAxes];
};

// Sets `block`, of `batch` times `cloud.cells()` numbers, to the sums of what points deposit. `values` has `batch` rows of
// `points.count` numbers. If a point is not at home, the block is filled with NaN. The result does not depend on the
// number of threads.
//
// With `along`, which has a direction for each slot, these are the derivatives as the coordinates move in this direction.
// Then the grid has three axes, the window at most `Cloud::kMostSlopes` cells, and values are real.
template <class Real, class Value>
void deposit(const Cloud& cloud, const Points<Real>& points, const Value* values, Index batch, Value* block,
             int threads, const typename RealOf<Value>::type* along = nullptr);

// Sets `values` to what the points read from `block`: the transpose of `deposit`. Other slots read zero.
template <class Real, class Value>
void read(const Cloud& cloud, const Points<Real>& points, const Value* block, Index batch, Value* values, int threads,
          const typename RealOf<Value>::type* along = nullptr);

// Sets `slopes`, three numbers for each slot, to the derivatives by the coordinates of the sum of what a point reads from
// each block, times its value.
template <class Real, class Value>
void find_slopes(const Cloud& cloud, const Points<Real>& points, const Value* values, const Value* block, Index batch,
                 Value* slopes, int threads);

}  // namespace decompops

// Points that add values to a block of cells, and that read a block.

#pragma once

#include <array>
#include <complex>
#include <vector>

#include "common/plan.h"

namespace decompops {

// How points touch the cells of a block of at most three axes. `Cloud` in decompops/_core/points.py explains the terms.
struct Cloud {
  static constexpr int kMostAxes = 3;
  static constexpr int kMostWidth = 16;

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

// Sets `block`, of `batch` times `cloud.cells()` numbers, to the sums of what `count` points deposit. The coordinates of
// a point lie side by side; `values` has `batch` rows of `count` numbers. The result does not depend on the number of
// threads.
template <class Real, class Value>
void deposit(const Cloud& cloud, const Real* points, Index count, const Value* values, Index batch, Value* block,
             int threads);

// Sets `values` to what the points read from `block`: the transpose of `deposit`.
template <class Real, class Value>
void read(const Cloud& cloud, const Real* points, Index count, const Value* block, Index batch, Value* values,
          int threads);

}  // namespace decompops

// Points in a box of cells that fits into a cache: they add values to it, or read it.

#pragma once

#include <cstdint>
#include <vector>

#include "cpu/points.h"

namespace decompops {

// A point that has been put in order.
template <class Real>
struct Spot {
  Real fractions[Cloud::kMostAxes];
  std::uint32_t cell;    // the first cell that it touches, in its box
  std::uint32_t number;  // its place among all points
};

// The cells that the points of one tile touch, and the polynomials of the window. A cell holds `parts` numbers.
template <class Real>
struct Box {
  int width;
  int rows[2];                      // of cells that a point touches along the first two axes
  Index extent[Cloud::kMostAxes];   // in cells
  Index strides[Cloud::kMostAxes];  // in cells
  Index numbers;                    // of one field; rows of spots may end behind the last cell
  int powers[Cloud::kMostAxes];
  // For each power, from the highest, one coefficient for each touched cell. Rows are padded to `Cloud::kMostWidth`.
  std::vector<Real> coefficients[Cloud::kMostAxes];

  Box(const Cloud& cloud, const Index (&tile)[Cloud::kMostAxes], int parts);
};

// Lets `count` spots add their values to the boxes of `fields` fields, or read them. `values` has a row of `stride`
// values for each field.
template <class Real>
using Spread = void (*)(const Box<Real>& box, const Spot<Real>* spots, Index count, Real* values, Index stride,
                        Index fields, Real* cells);

// Returns the function for clouds like this one, and cells of `parts` numbers. It uses the vectors of this processor.
template <class Real>
Spread<Real> spread_for(const Cloud& cloud, bool deposits, int parts);

}  // namespace decompops

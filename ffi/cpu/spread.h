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

// What spots do with their boxes: deposit, read, both of them along a direction, or find slopes.
enum class Action { deposit, read, deposit_along, read_along, find_slopes };

// Numbers with an entry for each point.
template <class Real>
struct PointArrays {
  Real* values;  // a row of `stride` values for each field
  Index stride;
  Real* along;  // directions or slopes, three numbers for each point
};

// Lets `count` spots act on the boxes of `fields` fields. Slopes are added to `along`.
template <class Real>
using Spread = void (*)(const Box<Real>& box, const Spot<Real>* spots, Index count, const PointArrays<Real>& arrays,
                        Index fields, Real* cells);

// Returns the function for clouds like this one, and cells of `parts` numbers. It uses the vectors of this processor.
template <class Real>
Spread<Real> spread_for(const Cloud& cloud, Action action, int parts);

}  // namespace decompops

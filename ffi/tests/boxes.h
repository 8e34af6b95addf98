// Boxes of cells in tests.

#pragma once

#include <functional>
#include <numeric>

#include "cpu/copy.h"

inline void for_all(const decompops::Strides& counts, const std::function<void(const decompops::Strides&)>& body) {
  using decompops::Strides;
  const decompops::Region whole{Strides::filled(counts.size()), counts};
  for_boxes(whole, Strides::filled(counts.size(), 1), [&](const decompops::Region& one) { body(one.lo); });
}

inline decompops::Index at(const decompops::Strides& cell, const decompops::Strides& stride) {
  return std::inner_product(cell.begin(), cell.end(), stride.begin(), decompops::Index{0});
}

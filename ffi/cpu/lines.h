// One-dimensional transforms of all lines of a block, tile by tile in cache.

#pragma once

#include <cstddef>
#include <functional>

#include "cpu/fft.h"
#include "cpu/pieces.h"

namespace decompops {

// A transform of lines of `length` real-space cells along `axis` of a box of cells.
struct Lines {
  int axis;
  Transform transform;
  Index length;
  double scale;
  Index dropped = 0;  // cells at the end of each result that are not stored

  Index cells_in() const { return transform.kind == Transform::Kind::c2r ? length / 2 + 1 : length; }
  Index cells_out() const { return transform.kind == Transform::Kind::r2c ? length / 2 + 1 : length; }
  Index stored() const { return cells_out() - dropped; }
};

// Reads the lines of `from` that lie in `region` (its extent along the lines' axis does not matter), transforms them
// and writes them to `to`. `real_bytes` is 4 or 8: single or double precision. `between`, if given, is
// called before each tile.
void transform_lines(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream,
                     Index real_bytes, Planning planning, const Memory& memory,
                     const std::function<void()>& between = {});

}  // namespace decompops

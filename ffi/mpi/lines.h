// One-dimensional Fourier transforms of all lines of a block, by FFTW, tile by tile in cache.

#pragma once

#include <cstddef>

#include "mpi/pieces.h"

namespace decompops::mpi {

// Transform lines of `length` real-space cells along `axis` (1, 2, 3 for x, y, z).
struct Lines {
  int axis;
  Transform transform;
  int sign;
  Index length;
  bool weighted;  // see `Fourier` in decompops/_stage.py
  double scale;

  Index cells_in() const { return transform == Transform::c2r ? length / 2 + 1 : length; }
  Index cells_out() const { return transform == Transform::r2c ? length / 2 + 1 : length; }
};

// Reads the lines of `from` that lie in `region` (its extent along the lines' axis does not matter), transforms them
// and writes them to `to`. `real_bytes` is 4 or 8: single or double precision. `planning` is FFTW's flag.
void transform_lines(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream,
                     Index real_bytes, unsigned planning, const Memory& memory);

// FFTW's flag for "estimate", "measure", "patient", "exhaustive", by number.
unsigned planning_flag(int effort);

}  // namespace decompops::mpi

// The definition of Fourier transforms.

#pragma once

#include <cmath>
#include <complex>

#include "common/plan.h"

using Cell = std::complex<double>;

// The factor by which a transform multiplies cell `n` of the input before it adds it to cell `k` of the result. A mode
// of a half spectrum also stands for its complex conjugate.
inline Cell weight(const decompops::Transform& transform, decompops::Index n, decompops::Index k,
                   decompops::Index length) {
  using Kind = decompops::Transform::Kind;
  const double angle = transform.sign * 2 * M_PI * static_cast<double>(n * k) / static_cast<double>(length);
  const decompops::Index mode = transform.kind == Kind::r2c ? k : n;
  const bool twice = mode > 0 && 2 * mode != length && transform.weighted == (transform.kind == Kind::r2c);
  return std::polar(twice && transform.kind != Kind::c2c ? 2.0 : 1.0, angle);
}

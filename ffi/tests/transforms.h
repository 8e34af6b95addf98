// The definition of the transforms of lines.

#pragma once

#include <cmath>
#include <complex>

#include "common/plan.h"
#include "tests/expect.h"

using Cell = std::complex<double>;

// The factor by which a transform multiplies cell `n` of the input before it adds it to cell `k` of the result. A mode
// of a half spectrum also stands for its complex conjugate.
inline Cell weight(const decompops::Transform& transform, decompops::Index n, decompops::Index k,
                   decompops::Index length) {
  using Kind = decompops::Transform::Kind;
  using Family = decompops::Transform::Family;
  if (transform.family != Family::fourier) {
    const bool is_sine = transform.family == Family::sine;
    const decompops::Index mode = transform.type == 2 ? k : n, point = transform.type == 2 ? n : k;
    const bool is_end = mode == (is_sine ? length - 1 : 0);
    const double angle =
        M_PI * static_cast<double>((mode + is_sine) * (2 * point + 1)) / static_cast<double>(2 * length);
    const double twice = is_end && transform.type == 3 ? 1 : 2;
    return (is_end ? std::pow(2, transform.power / 2.0) : 1) * twice * (is_sine ? std::sin(angle) : std::cos(angle));
  }
  const double angle = transform.sign * 2 * M_PI * static_cast<double>(n * k) / static_cast<double>(length);
  const decompops::Index mode = transform.kind == Kind::r2c ? k : n;
  const bool twice = mode > 0 && 2 * mode != length && transform.weighted == (transform.kind == Kind::r2c);
  return std::polar(twice && transform.kind != Kind::c2c ? 2.0 : 1.0, angle);
}

// A cosine or sine transform of real cells, or of complex ones.
inline decompops::Transform random_waves(decompops::Transform::Kind kind) {
  using Family = decompops::Transform::Family;
  const Family family = random(0, 1) ? Family::sine : Family::cosine;
  return {kind, 0, false, family, static_cast<int>(random(2, 3)), static_cast<int>(random(-2, 2))};
}

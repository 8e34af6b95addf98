#include "cpu/spread.h"

#include <algorithm>
#include <type_traits>

#include "cpu/vectors.h"

namespace decompops {
namespace {

// A vector holds four numbers. A row of one or two numbers is one vector of the same length.
constexpr int lanes(int numbers) { return numbers > 2 ? 4 : numbers; }
constexpr int vectors(int numbers) { return (numbers + lanes(numbers) - 1) / lanes(numbers); }
constexpr int padded(int numbers) { return vectors(numbers) * lanes(numbers); }

// So many spots ahead, values are fetched into the cache.
constexpr Index kAhead = 16;

template <class Real, int N>
struct VectorOf {
  typedef Real type __attribute__((vector_size(lanes(N) * sizeof(Real)), aligned(alignof(Real)), may_alias));
};

// What one point does with the cells that it touches. Cells have P numbers, and N cells along the last axis are a row of
// whole vectors. `Width` is the width of the window if the compiler shall know it, and 0 otherwise; `Whole` is whether
// the compiler shall know that the grid has three axes.
template <class Real, int N, int P, int Width, bool Whole>
struct Touch {
  using Row = typename VectorOf<Real, N * P>::type;
  using Line = typename VectorOf<Real, N>::type;
  static constexpr int kRow = vectors(N * P), kLine = vectors(N);

  alignas(sizeof(Line)) Real shares[Cloud::kMostAxes][kLine * lanes(N)];

  static int width(const Box<Real>& box) { return Width > 0 ? Width : box.width; }
  static int rows(const Box<Real>& box, int axis) { return Whole ? Width : box.rows[axis]; }

  DECOMPOPS_INLINE void find(const Box<Real>& box, const Spot<Real>& spot) {
    for (int i = 0; i < Cloud::kMostAxes; ++i) {
      const Line* row = reinterpret_cast<const Line*>(box.coefficients[i].data());
      const Line t = Line{} + spot.fractions[i];
      Line sums[kLine];
      for (int j = 0; j < kLine; ++j) sums[j] = row[j];
      for (int power = 1; power < box.powers[i]; ++power) {
        row = reinterpret_cast<const Line*>(box.coefficients[i].data() + power * Cloud::kMostWidth);
        for (int j = 0; j < kLine; ++j) sums[j] = sums[j] * t + row[j];
      }
      for (int j = 0; j < kLine; ++j) reinterpret_cast<Line*>(shares[i])[j] = sums[j];
    }
  }

  // Calls `visit(row, share)` for each row of cells along the last axis.
  template <class Visit>
  DECOMPOPS_INLINE void for_each_row(const Box<Real>& box, Real* cells, const Visit& visit) const {
    for (int p = 0; p < rows(box, 0); ++p) {
      for (int q = 0; q < rows(box, 1); ++q) {
        visit(reinterpret_cast<Row*>(cells + (p * box.strides[0] + q * box.strides[1]) * P),
              shares[0][p] * shares[1][q]);
      }
    }
  }

  DECOMPOPS_INLINE void deposit(const Box<Real>& box, const Real* value, Real* cells) const {
    alignas(sizeof(Row)) Real parts[kRow * lanes(N * P)] = {};  // zero beyond the window
    for (int j = 0; j < width(box); ++j) {
      for (int k = 0; k < P; ++k) parts[j * P + k] = value[k] * shares[2][j];
    }
    Row row[kRow];
    for (int k = 0; k < kRow; ++k) row[k] = reinterpret_cast<const Row*>(parts)[k];
    for_each_row(box, cells, [&](Row* to, Real share) __attribute__((always_inline)) {
      for (int k = 0; k < kRow; ++k) to[k] += row[k] * share;
    });
  }

  DECOMPOPS_INLINE void read(const Box<Real>& box, Real* cells, Real* value) const {
    Row row[kRow] = {};
    for_each_row(box, cells, [&](const Row* from, Real share) __attribute__((always_inline)) {
      for (int k = 0; k < kRow; ++k) row[k] += from[k] * share;
    });
    alignas(sizeof(Row)) Real parts[kRow * lanes(N * P)];
    for (int k = 0; k < kRow; ++k) reinterpret_cast<Row*>(parts)[k] = row[k];
    for (int k = 0; k < P; ++k) {
      Real sum = 0;
      for (int j = 0; j < width(box); ++j) sum += parts[j * P + k] * shares[2][j];
      value[k] = sum;
    }
  }
};

// The derivatives of what one point does, for a grid of three axes, with a window of `Width` cells and real values.
template <class Real, int Width>
struct Slope {
  using Line = typename VectorOf<Real, Width>::type;
  static constexpr int kLine = vectors(Width), kPadded = kLine * lanes(Width);

  alignas(sizeof(Line)) Real shares[Cloud::kMostAxes][kPadded], slopes[Cloud::kMostAxes][kPadded];

  DECOMPOPS_INLINE void find(const Box<Real>& box, const Spot<Real>& spot) {
    for (int i = 0; i < Cloud::kMostAxes; ++i) {
      const Line t = Line{} + spot.fractions[i];
      for (int j = 0; j < kLine; ++j) {
        const Real* coefficients = box.coefficients[i].data() + j * lanes(Width);
        Line sum = *reinterpret_cast<const Line*>(coefficients), slope = {};
        for (int power = 1; power < box.powers[i]; ++power) {
          coefficients += Cloud::kMostWidth;
          slope = slope * t + sum;
          sum = sum * t + *reinterpret_cast<const Line*>(coefficients);
        }
        reinterpret_cast<Line*>(shares[i])[j] = sum;
        reinterpret_cast<Line*>(slopes[i])[j] = slope;
      }
    }
  }

  // Calls `visit(row, p, q)` for each row of cells along the last axis.
  template <class Visit>
  DECOMPOPS_INLINE void for_each_row(const Box<Real>& box, Real* cells, const Visit& visit) const {
    for (int p = 0; p < Width; ++p) {
      for (int q = 0; q < Width; ++q) {
        visit(reinterpret_cast<Line*>(cells + p * box.strides[0] + q * box.strides[1]), p, q);
      }
    }
  }

  DECOMPOPS_INLINE void deposit(const Box<Real>& box, Real value, const Real* along, Real* cells) const {
    Line row[kLine], slope[kLine];
    for (int j = 0; j < kLine; ++j) {
      row[j] = reinterpret_cast<const Line*>(shares[2])[j] * value;
      slope[j] = reinterpret_cast<const Line*>(slopes[2])[j] * (value * along[2]);
    }
    for_each_row(box, cells, [&](Line* to, int p, int q) __attribute__((always_inline)) {
      const Real share = shares[0][p] * shares[1][q];
      const Real across = along[0] * slopes[0][p] * shares[1][q] + along[1] * shares[0][p] * slopes[1][q];
      for (int j = 0; j < kLine; ++j) to[j] += row[j] * across + slope[j] * share;
    });
  }

  // Sets `gradient` to the derivatives of what the point reads.
  DECOMPOPS_INLINE void read(const Box<Real>& box, Real* cells, Real (&gradient)[Cloud::kMostAxes]) const {
    Line rows[Cloud::kMostAxes][kLine] = {};
    for_each_row(box, cells, [&](const Line* from, int p, int q) __attribute__((always_inline)) {
      const Real x = slopes[0][p] * shares[1][q], y = shares[0][p] * slopes[1][q], z = shares[0][p] * shares[1][q];
      for (int j = 0; j < kLine; ++j) {
        rows[0][j] += from[j] * x;
        rows[1][j] += from[j] * y;
        rows[2][j] += from[j] * z;
      }
    });
    for (int i = 0; i < Cloud::kMostAxes; ++i) {
      const Real* factors = i == 2 ? slopes[2] : shares[2];
      alignas(sizeof(Line)) Real parts[kPadded];
      for (int j = 0; j < kLine; ++j) reinterpret_cast<Line*>(parts)[j] = rows[i][j];
      Real sum = 0;
      for (int j = 0; j < Width; ++j) sum += parts[j] * factors[j];
      gradient[i] = sum;
    }
  }
};

template <Action action, class Real, int N, int P, int Width, bool Whole>
DECOMPOPS_INLINE void spread(const Box<Real>& box, const Spot<Real>* spots, Index count,
                             const PointArrays<Real>& arrays, Index fields, Real* cells) {
  constexpr bool kPlain = action == Action::deposit || action == Action::read;
  std::conditional_t<kPlain, Touch<Real, N, P, Width, Whole>, Slope<Real, N>> touch;
  for (Index k = 0; k < count; ++k) {
    if (k + kAhead < count) {
      const Index ahead = spots[k + kAhead].number;
      constexpr bool kWrites = action == Action::read || action == Action::read_along;
      __builtin_prefetch(arrays.values + P * ahead, kWrites ? 1 : 0);
      if (!kPlain) __builtin_prefetch(arrays.along + Cloud::kMostAxes * ahead, action == Action::find_slopes ? 1 : 0);
    }
    touch.find(box, spots[k]);
    Real* value = arrays.values + P * Index{spots[k].number};
    Real* first = cells + P * Index{spots[k].cell};
    if constexpr (kPlain) {
      for (Index b = 0; b < fields; ++b, value += P * arrays.stride, first += box.numbers) {
        action == Action::deposit ? touch.deposit(box, value, first) : touch.read(box, first, value);
      }
    } else {
      Real* along = arrays.along + Cloud::kMostAxes * Index{spots[k].number};
      for (Index b = 0; b < fields; ++b, value += arrays.stride, first += box.numbers) {
        if constexpr (action == Action::deposit_along) {
          touch.deposit(box, *value, along, first);
        } else {
          Real gradient[Cloud::kMostAxes];
          touch.read(box, first, gradient);
          if constexpr (action == Action::read_along) {
            *value = gradient[0] * along[0] + gradient[1] * along[1] + gradient[2] * along[2];
          } else {
            for (int i = 0; i < Cloud::kMostAxes; ++i) along[i] += *value * gradient[i];
          }
        }
      }
    }
  }
}

#define DECOMPOPS_SPREAD(name, attributes)                                                                          \
  template <Action action, class Real, int N, int P, int Width, bool Whole>                                         \
  attributes void name(const Box<Real>& box, const Spot<Real>* spots, Index count, const PointArrays<Real>& arrays, \
                       Index fields, Real* cells) {                                                                 \
    spread<action, Real, N, P, Width, Whole>(box, spots, count, arrays, fields, cells);                             \
  }
DECOMPOPS_SPREAD(spread_plainly, )
#ifdef DECOMPOPS_HAS_AVX2
DECOMPOPS_SPREAD(spread_by_avx2, DECOMPOPS_AVX2)
#endif

template <Action action, class Real, int N, int P, int Width, bool Whole>
Spread<Real> best() {
#ifdef DECOMPOPS_HAS_AVX2
  if (has_avx2()) return spread_by_avx2<action, Real, N, P, Width, Whole>;
#endif
  return spread_plainly<action, Real, N, P, Width, Whole>;
}

// The compiler knows the widths of the windows of particles. Other windows differ in their number of vectors.
template <Action action, class Real, int P>
Spread<Real> pick(int width, bool whole) {
  if (whole) {
    switch (width) {
      case 1: return best<action, Real, 1, P, 1, true>();
      case 2: return best<action, Real, 2, P, 2, true>();
      case 3: return best<action, Real, 3, P, 3, true>();
      case 4: return best<action, Real, 4, P, 4, true>();
      default: break;
    }
  }
  const int half = width % 4 == 1 || width % 4 == 2;
  if (P == 2 && half) {
    switch (width / 4) {
      case 0: return best<action, Real, 2, P, 0, false>();
      case 1: return best<action, Real, 6, P, 0, false>();
      case 2: return best<action, Real, 10, P, 0, false>();
      default: return best<action, Real, 14, P, 0, false>();
    }
  }
  switch ((width + 3) / 4) {
    case 1: return best<action, Real, 4, P, 0, false>();
    case 2: return best<action, Real, 8, P, 0, false>();
    case 3: return best<action, Real, 12, P, 0, false>();
    default: return best<action, Real, 16, P, 0, false>();
  }
}

// The derivatives that have a kernel: see `deposit` in cpu/points.h.
template <Action action, class Real>
Spread<Real> pick_slopes(const Cloud& cloud, int parts) {
  if (parts == 1 && cloud.first_axis == 0) {
    switch (cloud.axes[2].width) {
      case 1: return best<action, Real, 1, 1, 1, true>();
      case 2: return best<action, Real, 2, 1, 2, true>();
      case 3: return best<action, Real, 3, 1, 3, true>();
      case Cloud::kMostSlopes: return best<action, Real, 4, 1, 4, true>();
      default: break;
    }
  }
  throw Failure("these derivatives have no kernel");
}

}  // namespace

template <class Real>
Box<Real>::Box(const Cloud& cloud, const Index (&tile)[Cloud::kMostAxes], int parts) : width(cloud.axes[2].width) {
  for (int i = 0; i < Cloud::kMostAxes; ++i) {
    const Cloud::Axis& axis = cloud.axes[i];
    extent[i] = tile[i] + axis.width - 1;
    powers[i] = static_cast<int>(axis.coefficients.size()) / axis.width;
    coefficients[i].assign(powers[i] * Cloud::kMostWidth, 0);
    for (int power = 0; power < powers[i]; ++power) {
      Real* row = coefficients[i].data() + power * Cloud::kMostWidth;
      std::copy_n(axis.coefficients.data() + power * axis.width, axis.width, row);
    }
  }
  rows[0] = cloud.axes[0].width;
  rows[1] = cloud.axes[1].width;
  strides[2] = 1;
  strides[1] = extent[2];
  strides[0] = extent[1] * extent[2];
  numbers = (strides[0] * extent[0] + 3) * parts;
}

template <class Real>
Spread<Real> spread_for(const Cloud& cloud, Action action, int parts) {
  const int width = cloud.axes[2].width;
  const bool whole = cloud.first_axis == 0;
  switch (action) {
    case Action::deposit:
      return parts == 1 ? pick<Action::deposit, Real, 1>(width, whole) : pick<Action::deposit, Real, 2>(width, whole);
    case Action::read:
      return parts == 1 ? pick<Action::read, Real, 1>(width, whole) : pick<Action::read, Real, 2>(width, whole);
    case Action::deposit_along: return pick_slopes<Action::deposit_along, Real>(cloud, parts);
    case Action::read_along: return pick_slopes<Action::read_along, Real>(cloud, parts);
    default: return pick_slopes<Action::find_slopes, Real>(cloud, parts);
  }
}

template struct Box<float>;
template struct Box<double>;
template Spread<float> spread_for(const Cloud&, Action, int);
template Spread<double> spread_for(const Cloud&, Action, int);

}  // namespace decompops

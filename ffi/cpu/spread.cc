#include "cpu/spread.h"

#include <algorithm>
#include <utility>

#if defined(__x86_64__) && defined(__GNUC__)
#define DECOMPOPS_HAS_AVX2
#endif
#define DECOMPOPS_INLINE [[gnu::always_inline]] inline

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

template <bool Deposits, class Real, int N, int P, int Width, bool Whole>
DECOMPOPS_INLINE void spread(const Box<Real>& box, const Spot<Real>* spots, Index count, Real* values, Index stride,
                             Index fields, Real* cells) {
  Touch<Real, N, P, Width, Whole> touch;
  for (Index k = 0; k < count; ++k) {
    if (k + kAhead < count) __builtin_prefetch(values + P * Index{spots[k + kAhead].number}, Deposits ? 0 : 1);
    touch.find(box, spots[k]);
    Real* value = values + P * Index{spots[k].number};
    Real* first = cells + P * Index{spots[k].cell};
    for (Index b = 0; b < fields; ++b, value += P * stride, first += box.numbers) {
      Deposits ? touch.deposit(box, value, first) : touch.read(box, first, value);
    }
  }
}

#define DECOMPOPS_SPREAD(name, attributes)                                                                     \
  template <bool Deposits, class Real, int N, int P, int Width, bool Whole>                                    \
  attributes void name(const Box<Real>& box, const Spot<Real>* spots, Index count, Real* values, Index stride, \
                       Index fields, Real* cells) {                                                            \
    spread<Deposits, Real, N, P, Width, Whole>(box, spots, count, values, stride, fields, cells);              \
  }
DECOMPOPS_SPREAD(spread_plainly, )
#ifdef DECOMPOPS_HAS_AVX2
DECOMPOPS_SPREAD(spread_by_avx2, __attribute__((target("avx2,fma"))))
#endif

template <bool Deposits, class Real, int N, int P, int Width, bool Whole>
Spread<Real> best() {
#ifdef DECOMPOPS_HAS_AVX2
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return spread_by_avx2<Deposits, Real, N, P, Width, Whole>;
#endif
  return spread_plainly<Deposits, Real, N, P, Width, Whole>;
}

// The compiler knows the widths of the windows of particles. Other windows differ in their number of vectors.
template <bool Deposits, class Real, int P>
Spread<Real> pick(int width, bool whole) {
  if (whole) {
    switch (width) {
      case 1: return best<Deposits, Real, 1, P, 1, true>();
      case 2: return best<Deposits, Real, 2, P, 2, true>();
      case 3: return best<Deposits, Real, 3, P, 3, true>();
      case 4: return best<Deposits, Real, 4, P, 4, true>();
      default: break;
    }
  }
  const int half = width % 4 == 1 || width % 4 == 2;
  if (P == 2 && half) {
    switch (width / 4) {
      case 0: return best<Deposits, Real, 2, P, 0, false>();
      case 1: return best<Deposits, Real, 6, P, 0, false>();
      case 2: return best<Deposits, Real, 10, P, 0, false>();
      default: return best<Deposits, Real, 14, P, 0, false>();
    }
  }
  switch ((width + 3) / 4) {
    case 1: return best<Deposits, Real, 4, P, 0, false>();
    case 2: return best<Deposits, Real, 8, P, 0, false>();
    case 3: return best<Deposits, Real, 12, P, 0, false>();
    default: return best<Deposits, Real, 16, P, 0, false>();
  }
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
Spread<Real> spread_for(const Cloud& cloud, bool deposits, int parts) {
  const int width = cloud.axes[2].width;
  const bool whole = cloud.first_axis == 0;
  if (parts == 1) return deposits ? pick<true, Real, 1>(width, whole) : pick<false, Real, 1>(width, whole);
  return deposits ? pick<true, Real, 2>(width, whole) : pick<false, Real, 2>(width, whole);
}

template struct Box<float>;
template struct Box<double>;
template Spread<float> spread_for(const Cloud&, bool, int);
template Spread<double> spread_for(const Cloud&, bool, int);

}  // namespace decompops

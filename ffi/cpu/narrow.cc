#include "cpu/narrow.h"

#include <algorithm>
#include <cmath>
#include <utility>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "cpu/axes.h"
#include "cpu/vectors.h"

namespace decompops {
namespace {

// Boxes are converted in parts that stay in the first level of the cache: rows of at most `kLong` cells, which are
// contiguous where they are stored in the narrow type.
constexpr Index kLong = 128, kRows = 16, kNumbers = 2 * kLong;
constexpr Index kMeasured = 1024;  // cells that are measured at a time
constexpr Index kSums = 8;         // sums that the compiler adds up side by side

struct Single {
  float bits;
  float wide() const { return bits; }
  static float narrow(float value) { return value; }
};

// --- Rows of numbers in single precision.

template <class Stored>
DECOMPOPS_INLINE void narrow_all(Stored* to, const float* from, Index count) {
  for (Index i = 0; i < count; ++i) to[i].bits = Stored::narrow(from[i]);
}

template <class Stored>
DECOMPOPS_INLINE void widen_all(float* to, const Stored* from, Index count) {
  for (Index i = 0; i < count; ++i) to[i] = from[i].wide();
}

#ifdef DECOMPOPS_HAS_AVX2
#define DECOMPOPS_F16C __attribute__((target("avx2,fma,f16c")))

bool has_f16c() {
  static const bool has = has_avx2() && __builtin_cpu_supports("f16c");
  return has;
}

DECOMPOPS_F16C void narrow_with_avx2(Half* to, const float* from, Index count) {
  Index i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i eight = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), eight);
  }
  narrow_all(to + i, from + i, count - i);
}

DECOMPOPS_F16C void widen_with_avx2(float* to, const Half* from, Index count) {
  Index i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  widen_all(to + i, from + i, count - i);
}

// The compiler makes vectors of these two.
DECOMPOPS_F16C void narrow_with_avx2(Bfloat* to, const float* from, Index count) { narrow_all(to, from, count); }
DECOMPOPS_F16C void widen_with_avx2(float* to, const Bfloat* from, Index count) { widen_all(to, from, count); }

template <class Stored>
void narrow_row(Stored* to, const float* from, Index count) {
  has_f16c() ? narrow_with_avx2(to, from, count) : narrow_all(to, from, count);
}

template <class Stored>
void widen_row(float* to, const Stored* from, Index count) {
  has_f16c() ? widen_with_avx2(to, from, count) : widen_all(to, from, count);
}

void narrow_row(Single* to, const float* from, Index count) { narrow_all(to, from, count); }
void widen_row(float* to, const Single* from, Index count) { widen_all(to, from, count); }
#else
template <class Stored>
void narrow_row(Stored* to, const float* from, Index count) {
  narrow_all(to, from, count);
}

template <class Stored>
void widen_row(float* to, const Stored* from, Index count) {
  widen_all(to, from, count);
}
#endif

// --- Rows of cells.

// Calls `body(pointer)`, with a pointer to the numbers that are stored at `start`.
template <class Body>
void with_stored(Wire wire, std::byte* start, const Body& body) {
  switch (wire) {
    case Wire::f32: return body(reinterpret_cast<Single*>(start));
    case Wire::bf16: return body(reinterpret_cast<Bfloat*>(start));
    case Wire::f16: return body(reinterpret_cast<Half*>(start));
    case Wire::none: break;
  }
  throw Failure("these numbers are not narrow");
}

// Numbers in double precision are rounded to single precision first, as XLA does it.
template <class Real>
void narrow_numbers(std::byte* to, Wire wire, const Real* from, Index count, Real factor) {
  float part[kNumbers];
  for (Index i = 0; i < count; ++i) part[i] = static_cast<float>(from[i] * factor);
  with_stored(wire, to, [&](auto* stored) { narrow_row(stored, part, count); });
}

template <class Real>
void widen_numbers(Real* to, Wire wire, std::byte* from, Index count, Real factor) {
  float part[kNumbers];
  with_stored(wire, from, [&](const auto* stored) { widen_row(part, stored, count); });
  for (Index i = 0; i < count; ++i) to[i] = static_cast<Real>(part[i]) * factor;
}

// One field of a batch, of which at least one side is narrow.
template <class Real>
struct Conversion {
  Cells to, from;
  Index element, stored;  // the bytes of a cell
  Real narrowing, widening;

  bool narrows() const { return to.narrow.wire != Wire::none; }
  bool widens() const { return from.narrow.wire != Wire::none; }
  Index numbers(Index cells) const { return cells * element / static_cast<Index>(sizeof(Real)); }

  void narrow_cells(std::byte* start, const std::byte* cells, Index count) const {
    narrow_numbers(start, to.narrow.wire, reinterpret_cast<const Real*>(cells), numbers(count), narrowing);
  }
  void widen_cells(std::byte* cells, std::byte* start, Index count) const {
    widen_numbers(reinterpret_cast<Real*>(cells), from.narrow.wire, start, numbers(count), widening);
  }

  // Both sides are contiguous along the row, or it has one cell.
  void convert_row(std::byte* target, std::byte* source, Index count) const {
    if (!widens()) return narrow_cells(target, source, count);
    if (!narrows()) return widen_cells(target, source, count);
    alignas(kCacheLine) std::byte cells[kNumbers * sizeof(Real)];
    widen_cells(cells, source, count);
    narrow_cells(target, cells, count);
  }

  // The narrow side is contiguous along `columns`, the other side along `rows` or not at all. The cells are collected in
  // the wide type between their conversion and their transpose. `Axis::to` is the stride on the narrow side.
  void convert_box(std::byte* narrow, std::byte* wide, const Axis& rows, const Axis& columns) const {
    alignas(kCacheLine) std::byte staged[kRows * kNumbers * sizeof(Real)];
    const Strides counts{rows.count, columns.count}, dense{kLong, 1}, strides{rows.from, columns.from};
    if (narrows()) decompops::copy(staged, dense, wide, strides, counts, element);
    for (Index row = 0; row < rows.count; ++row) {
      std::byte *cells = staged + row * kLong * element, *start = narrow + row * rows.to * stored;
      narrows() ? narrow_cells(start, cells, columns.count) : widen_cells(cells, start, columns.count);
    }
    if (!narrows()) decompops::copy(wide, strides, staged, dense, counts, element);
  }

  void run(const Strides& counts) const {
    const Cells &narrow = narrows() ? to : from, &other = narrows() ? from : to;
    const Index other_bytes = narrows() && widens() ? stored : element;
    Axes axes{};
    int count = simplify(axes, narrow.stride, other.stride, counts);
    Axis columns{1, 1, 1}, rows{1, 0, 0};
    const bool in_rows = count > 0 && axes[count - 1].to == 1 && (axes[count - 1].from == 1 || !narrows() || !widens());
    if (in_rows) columns = axes[--count];  // otherwise, cell by cell
    if (columns.from != 1 && count > 0) {
      const auto nearest = std::min_element(axes.begin(), axes.begin() + count,
                                            [](const Axis& a, const Axis& b) { return a.from < b.from; });
      rows = *nearest;
      std::copy(nearest + 1, axes.begin() + count--, nearest);
    }
    for_each(axes.data(), count, 0, 0, [&](Index n, Index o) {
      for (Index column = 0; column < columns.count; column += kLong) {
        for (Index row = 0; row < rows.count; row += kRows) {
          const Axis some_columns{std::min(kLong, columns.count - column), columns.to, columns.from};
          const Axis some_rows{std::min(kRows, rows.count - row), rows.to, rows.from};
          std::byte* there = narrow.start + (n + column * columns.to + row * rows.to) * stored;
          std::byte* here = other.start + (o + column * columns.from + row * rows.from) * other_bytes;
          if (columns.from != 1) {
            convert_box(there, here, some_rows, some_columns);
          } else if (narrows()) {
            convert_row(there, here, some_columns.count);
          } else {
            convert_row(here, there, some_columns.count);
          }
        }
      }
    });
  }
};

template <class Real>
void convert(Cells to, Cells from, Strides counts, Index element, double scale) {
  const Index fields = std::exchange(counts[0], 1), ratio = std::max(to.narrow.ratio, from.narrow.ratio);
  auto power = [](const Cells& cells, Index field, int sign) {
    return std::ldexp(1.0, cells.narrow.wire == Wire::f16 ? sign * cells.exponents[field] : 0);
  };
  for (Index field = 0; field < fields; ++field) {
    const double narrowing = scale * power(to, field, 1), widening = power(from, field, -1);
    Conversion<Real>{to,
                     from,
                     element,
                     element / ratio,
                     static_cast<Real>(narrowing),
                     static_cast<Real>(to.narrow.wire == Wire::none ? scale * widening : widening)}
        .run(counts);
    to.start += to.stride[0] * element / to.narrow.ratio;
    from.start += from.stride[0] * element / from.narrow.ratio;
  }
}

// The 2-norm of numbers whose squares may be too large or too small for double precision. `count` is a multiple of
// `kSums`.
template <class Real>
double norm(const Real* numbers, Index count) {
  double norm = 0;
  for (const double factor : {1.0, 0x1p-600, 0x1p600}) {
    double sums[kSums] = {};
    for (Index i = 0; i < count; i += kSums) {
      for (Index j = 0; j < kSums; ++j) {
        const double number = factor * static_cast<double>(numbers[i + j]);
        sums[j] += number * number;
      }
    }
    double sum = 0;
    for (const double each : sums) sum += each;
    norm = std::sqrt(sum) / factor;
    if (sizeof(Real) == 4 || std::isnan(sum) || (sum > 0x1p-900 && std::isfinite(sum))) break;
  }
  return norm;
}

template <class Real>
double measure(const Piece& piece, const Memory& memory, Index element) {
  alignas(kCacheLine) std::byte staged[2 * kMeasured * sizeof(Real)];
  PerAxis<Index> cells = PerAxis<Index>::filled(piece.region.axes(), 1);
  for (Index axis = piece.region.axes() - 1, room = kMeasured; axis > 0; room /= cells[axis--]) {
    cells[axis] = std::clamp<Index>(piece.region.count(axis), 1, room);
  }
  double whole = 0;
  for_boxes(piece.region, cells, [&](const Region& box) {
    const Piece dense_box = dense(piece.buffer, 0, box), part = placed(piece, box, element);
    copy({staged, dense_box.stride}, cells_of(part, memory), box.counts(), element);
    const Index numbers = box.volume() * element / static_cast<Index>(sizeof(Real)),
                summed = ceil_div(numbers, kSums) * kSums;
    auto start = reinterpret_cast<Real*>(staged);
    std::fill(start + numbers, start + summed, Real(0));
    whole = std::hypot(whole, norm(start, summed));
  });
  return whole;
}

}  // namespace

Cells cells_of(const Piece& piece, const Memory& memory) {
  return {memory[piece], piece.stride, piece.narrow, memory.exponents_of(piece)};
}

void copy(const Cells& to, const Cells& from, const Strides& counts, Index element, Access access, const Scale& scale) {
  const Index ratio = std::max(to.narrow.ratio, from.narrow.ratio);
  if (ratio == 1) return copy(to.start, to.stride, from.start, from.stride, counts, element, access, scale);
  if (std::any_of(counts.begin(), counts.end(), [](Index n) { return n <= 0; })) return;
  const Wire wire = std::max(to.narrow.wire, from.narrow.wire);
  // Both boxes store the same type, so nothing is converted.
  const bool is_same = to.narrow.wire == from.narrow.wire && wire != Wire::f16 && scale.factor == 1;
  if (is_same) return copy(to.start, to.stride, from.start, from.stride, counts, element / ratio, access);
  const Index real_bytes = ratio * (wire == Wire::f32 ? 4 : 2);
  auto convert_as = real_bytes == 4 ? convert<float> : convert<double>;
  convert_as(to, from, counts, element, scale.factor);
}

double norm_of(const Piece& piece, const Memory& memory, Index element, Index real_bytes) {
  return real_bytes == 4 ? measure<float>(piece, memory, element) : measure<double>(piece, memory, element);
}

Exponent exponent_for(double bound, Index real_bytes) {
  if (!(bound > 0) || !std::isfinite(bound)) return 0;
  constexpr int kLargest = 15;                    // the numbers become smaller than 2 to this power
  const int most = real_bytes == 4 ? 110 : 1000;  // so that a factor never overflows
  return std::clamp(kLargest - 1 - std::ilogb(bound), -most, most);
}

}  // namespace decompops

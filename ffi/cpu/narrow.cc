#include "cpu/narrow.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "cpu/axes.h"
#include "cpu/vectors.h"

namespace decompops {
namespace {

constexpr Index kPart = 1024;    // cells that are converted at a time, in the first level of the cache
constexpr Index kNumbers = 256;  // numbers that are converted at a time, in single precision
constexpr Index kSums = 8;       // sums that the compiler adds up side by side

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
  with_stored(wire, to, [&](auto* stored) {
    for (Index first = 0; first < count; first += kNumbers) {
      const Index some = std::min(kNumbers, count - first);
      for (Index i = 0; i < some; ++i) part[i] = static_cast<float>(from[first + i] * factor);
      narrow_row(stored + first, part, some);
    }
  });
}

template <class Real>
void widen_numbers(Real* to, Wire wire, std::byte* from, Index count, Real factor) {
  float part[kNumbers];
  with_stored(wire, from, [&](const auto* stored) {
    for (Index first = 0; first < count; first += kNumbers) {
      const Index some = std::min(kNumbers, count - first);
      widen_row(part, stored + first, some);
      for (Index i = 0; i < some; ++i) to[first + i] = static_cast<Real>(part[i]) * factor;
    }
  });
}

// Whether cells with these strides lie in memory as they do with the strides `dense`.
bool is_dense(const Strides& stride, const Strides& dense, const Strides& counts) {
  for (int axis = 0; axis < counts.size(); ++axis) {
    if (counts[axis] > 1 && stride[axis] != dense[axis]) return false;
  }
  return true;
}

// A box of cells of one field, of which at least one side is narrow. A part of the box at a time is collected in the
// cache: first as `from` stores its numbers, then in the wide type, and then as `to` stores them.
template <class Real>
class Conversion {
 public:
  Conversion(const Cells& to, const Cells& from, const Strides& counts, Index element, Access access)
      : to_(to), from_(from), element_(element), access_(access), cells_(counts), dense_(counts) {
    const Strides& stride = (narrows() ? to : from).stride;
    std::array<int, kMaxAxes + 1> axes;
    std::iota(axes.begin(), axes.begin() + counts.size(), 0);
    std::sort(axes.begin(), axes.begin() + counts.size(), [&](int a, int b) { return stride[a] < stride[b]; });
    Index cells = 1;
    for (int i = 0; i < counts.size(); ++i) {
      const int axis = axes[i];
      dense_[axis] = cells;
      cells_[axis] = std::min(counts[axis], kPart / cells);
      cells *= cells_[axis];
    }
  }

  void run(const Strides& counts, Real narrowing, Real widening) const {
    alignas(kCacheLine) std::byte wide[2 * kPart * sizeof(Real)], stored[2 * kPart * sizeof(Real)];
    for_boxes({Strides::filled(counts.size()), counts}, cells_, [&](const Region& box) {
      const Strides some = box.counts();
      const Index numbers = box.volume() * element_ / static_cast<Index>(sizeof(Real));
      std::byte *source = start_of(from_, box), *target = start_of(to_, box);
      if (widens() && access_ == Access::ahead) fetch_after(source, some);
      if (!is_dense(from_.stride, dense_, some)) {
        std::byte* collected = widens() ? stored : wide;
        decompops::copy(collected, dense_, source, from_.stride, some, bytes_in(from_));
        source = collected;
      }
      if (widens()) {
        widen_numbers(reinterpret_cast<Real*>(wide), from_.narrow.wire, source, numbers, widening);
        source = wide;
      }
      if (narrows()) {
        std::byte* collected = is_dense(to_.stride, dense_, some) ? target : stored;
        narrow_numbers(collected, to_.narrow.wire, reinterpret_cast<Real*>(source), numbers, narrowing);
        source = collected;
      }
      decompops::copy(target, to_.stride, source, dense_, some, bytes_in(to_), access_);
    });
  }

 private:
  bool narrows() const { return to_.narrow.wire != Wire::none; }
  bool widens() const { return from_.narrow.wire != Wire::none; }
  Index bytes_in(const Cells& side) const { return element_ / side.narrow.ratio; }

  std::byte* start_of(const Cells& side, const Region& box) const {
    Index cells = 0;
    for (int axis = 0; axis < box.axes(); ++axis) cells += box.lo[axis] * side.stride[axis];
    return side.start + cells * bytes_in(side);
  }

  // Starts to fetch the cells behind each row, which mostly belong to the next tile.
  void fetch_after(const std::byte* source, const Strides& counts) const {
    Axes axes{};
    const int count = simplify(axes, from_.stride, from_.stride, counts);
    if (count == 0) return;
    const Index row = axes[count - 1].count * axes[count - 1].from * bytes_in(from_);
    for_each(axes.data(), count - 1, 0, 0, [&](Index, Index start) {
      for (Index i = 0; i < row; i += kCacheLine) __builtin_prefetch(source + start * bytes_in(from_) + row + i, 0, 2);
    });
  }

  const Cells &to_, &from_;
  const Index element_;
  const Access access_;
  Strides cells_, dense_;  // the most cells of a part along each axis, and the strides of the collected cells
};

template <class Real>
void convert(Cells to, Cells from, Strides counts, Index element, Access access, double scale) {
  const Index fields = std::exchange(counts[0], 1);
  auto power = [](const Cells& cells, Index field, int sign) {
    return std::ldexp(1.0, cells.narrow.wire == Wire::f16 ? sign * cells.exponents[field] : 0);
  };
  const bool narrows = to.narrow.wire != Wire::none;
  for (Index field = 0; field < fields; ++field) {
    const double narrowing = scale * power(to, field, 1), widening = power(from, field, -1);
    Conversion<Real>(to, from, counts, element, access)
        .run(counts, static_cast<Real>(narrowing), static_cast<Real>(narrows ? widening : scale * widening));
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
  alignas(kCacheLine) std::byte staged[2 * kPart * sizeof(Real)];
  PerAxis<Index> cells = PerAxis<Index>::filled(piece.region.axes(), 1);
  for (Index axis = piece.region.axes() - 1, room = kPart; axis > 0; room /= cells[axis--]) {
    cells[axis] = std::clamp<Index>(piece.region.count(axis), 1, room);
  }
  double whole = 0;
  for_boxes(piece.region, cells, [&](const Region& box) {
    const Piece dense_box = dense(piece.buffer, 0, box), part = placed(piece, box, element);
    const Index numbers = box.volume() * element / static_cast<Index>(sizeof(Real)),
                summed = ceil_div(numbers, kSums) * kSums;
    auto start = reinterpret_cast<Real*>(memory[part]);
    if (numbers < summed || piece.narrow.wire != Wire::none || !is_dense(part.stride, dense_box.stride, box.counts())) {
      start = reinterpret_cast<Real*>(staged);
      copy({staged, dense_box.stride}, cells_of(part, memory), box.counts(), element);
      std::fill(start + numbers, start + summed, Real(0));
    }
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
  convert_as(to, from, counts, element, access, scale.factor);
}

double norm_of(const Piece& piece, const Memory& memory, Index element, Index real_bytes) {
  return real_bytes == 4 ? measure<float>(piece, memory, element) : measure<double>(piece, memory, element);
}

Exponent exponent_for(double bound, Index real_bytes) {
  if (!(bound > 0) || !std::isfinite(bound)) return 0;
  constexpr int kLargest = 15;  // the numbers become smaller than 2 to this power
  // The inverse of the factor must not overflow, nor the product of the factor and the scale of a transform.
  const int least = real_bytes == 4 ? -126 : -1022, most = real_bytes == 4 ? 110 : 1000;
  return std::clamp(kLargest - 1 - std::ilogb(bound), least, most);
}

}  // namespace decompops

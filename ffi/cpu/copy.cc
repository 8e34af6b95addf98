#include "cpu/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "cpu/axes.h"

namespace decompops {
namespace {

template <class Real>
struct Complex {
  Real real, imag;
  Complex operator*(Real factor) const { return {real * factor, imag * factor}; }
  Complex& operator+=(const Complex& other) {
    real += other.real;
    imag += other.imag;
    return *this;
  }
};

// The operation on each cell.
struct Unchanged {
  template <class T>
  T operator()(T cell) const {
    return cell;
  }
};

template <class Real>
struct Times {
  Real factor;
  template <class T>
  T operator()(T cell) const {
    return cell * factor;
  }
};

constexpr Index kBlock = 8;    // cells that are transposed at a time, in both directions
constexpr Index kPage = 4096;  // bytes; rows that lie a page apart fall into the same set of the cache

void stream_row(void* to_start, const void* from_start, Index bytes) {
#ifdef __SSE2__
  auto to = static_cast<std::byte*>(to_start);
  auto from = static_cast<const std::byte*>(from_start);
  const Index head = std::min<Index>(bytes, -reinterpret_cast<std::intptr_t>(to) & (kCacheLine - 1));
  std::memcpy(to, from, head);
  Index done = head;
  for (; done + kCacheLine <= bytes; done += kCacheLine) {
    for (Index i = done; i < done + kCacheLine; i += 16) {
      const auto value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), value);
    }
  }
  std::memcpy(to + done, from + done, bytes - done);
#else
  std::memcpy(to_start, from_start, bytes);
#endif
}

// Transposes two by two elements of 8 bytes in vector registers.
template <class T, class Change>
inline void transpose_pair(T* to, Index to_stride, const T* from, Index from_stride, Change change) {
  using Pair [[gnu::vector_size(16)]] = double;
  using Numbers [[gnu::vector_size(16)]] = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Pair a, b;
  std::memcpy(&a, from, sizeof(Pair));
  std::memcpy(&b, from + from_stride, sizeof(Pair));
  const Numbers first = change((Numbers)Pair{a[0], b[0]}), second = change((Numbers)Pair{a[1], b[1]});
  std::memcpy(to, &first, sizeof(Pair));
  std::memcpy(to + to_stride, &second, sizeof(Pair));
}

#ifdef __SSE2__
// Transposes a block of elements of 8 bytes, four by four.
[[gnu::target("avx")]] void transpose_with_avx(double* to, Index to_stride, const double* from, Index from_stride) {
  for (Index c = 0; c < kBlock; c += 4) {
    for (Index r = 0; r < kBlock; r += 4) {
      const double* in = from + r + c * from_stride;
      double* out = to + r * to_stride + c;
      __m256d row[4];
      for (Index i = 0; i < 4; ++i) row[i] = _mm256_loadu_pd(in + i * from_stride);
      const __m256d even_low = _mm256_unpacklo_pd(row[0], row[1]), odd_low = _mm256_unpackhi_pd(row[0], row[1]);
      const __m256d even_high = _mm256_unpacklo_pd(row[2], row[3]), odd_high = _mm256_unpackhi_pd(row[2], row[3]);
      _mm256_storeu_pd(out, _mm256_permute2f128_pd(even_low, even_high, 0x20));
      _mm256_storeu_pd(out + to_stride, _mm256_permute2f128_pd(odd_low, odd_high, 0x20));
      _mm256_storeu_pd(out + 2 * to_stride, _mm256_permute2f128_pd(even_low, even_high, 0x31));
      _mm256_storeu_pd(out + 3 * to_stride, _mm256_permute2f128_pd(odd_low, odd_high, 0x31));
    }
  }
}
#endif

// Transposes a block of elements of 4 bytes in vector registers, in squares of four by four elements.
template <class T, class Change>
void transpose_floats(T* to, Index to_stride, const T* from, Index from_stride, Change change) {
#ifdef __SSE2__
  for (Index c = 0; c < kBlock; c += 4) {
    for (Index r = 0; r < kBlock; r += 4) {
      __m128 row[4];
      for (Index i = 0; i < 4; ++i) row[i] = _mm_loadu_ps(from + r + (c + i) * from_stride);
      _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
      for (Index i = 0; i < 4; ++i) _mm_storeu_ps(to + (r + i) * to_stride + c, change(row[i]));
    }
  }
#else
  for (Index r = 0; r < kBlock; ++r) {
    for (Index c = 0; c < kBlock; ++c) to[r * to_stride + c] = change(from[r + c * from_stride]);
  }
#endif
}

// Transposes a block of elements of 8 bytes.
template <class T, class Change>
void transpose_doubles(T* to, Index to_stride, const T* from, Index from_stride, Change change) {
#ifdef __SSE2__
  if constexpr (std::is_same_v<Change, Unchanged>) {
    static const bool has_avx = __builtin_cpu_supports("avx");
    if (has_avx) return transpose_with_avx(to, to_stride, from, from_stride);
  }
#endif
  for (Index c = 0; c < kBlock; c += 2) {
    for (Index r = 0; r < kBlock; r += 2) {
      transpose_pair(to + r * to_stride + c, to_stride, from + r + c * from_stride, from_stride, change);
    }
  }
}

// Fetches cells that are needed later. The function normally fetches the same columns of the next tile, so that there
// is much time until they are needed. But columns at a distance of whole pages share a few sets of the cache, which
// then have no room for the next tile. In this case, the function fetches the columns after the next block of this
// tile.
template <class T>
void fetch_ahead(const T* from, const Axis& rows, const Axis& columns, Index first, Index last) {
  const bool few_sets = columns.from * static_cast<Index>(sizeof(T)) % kPage == 0;
  const T* next = from + (few_sets ? 2 * kBlock * columns.from : rows.count);
  for (Index c = first; c < last; ++c) {
    for (Index r = 0; r < rows.count; r += kCacheLine / static_cast<Index>(sizeof(T))) {
      __builtin_prefetch(next + c * columns.from + r, 0, 2);
    }
  }
}

// Copies block by block, so that reads and writes use whole cache lines. `to` is contiguous along `columns`. `from` is
// mostly contiguous along `rows`.
template <class T, class Change>
void transpose(T* to, const T* from, const Axis& rows, const Axis& columns, bool ahead, Change change) {
  constexpr bool kHasBlocks = sizeof(T) == 4 || sizeof(T) == 8;
  const bool blocks = kHasBlocks && columns.to == 1 && rows.from == 1;
  auto copy_block = [&](Index i, Index j) {
    const Index i_end = std::min(i + kBlock, rows.count), j_end = std::min(j + kBlock, columns.count);
    if constexpr (kHasBlocks) {
      if (blocks && j_end - j == kBlock && i_end - i == kBlock) {
        T* block = to + i * rows.to + j;
        const T* source = from + i + j * columns.from;
        if constexpr (sizeof(T) == 4) transpose_floats(block, rows.to, source, columns.from, change);
        if constexpr (sizeof(T) == 8) transpose_doubles(block, rows.to, source, columns.from, change);
        return;
      }
    }
    for (Index r = i; r < i_end; ++r) {
      for (Index c = j; c < j_end; ++c) {
        to[r * rows.to + c * columns.to] = change(from[r * rows.from + c * columns.from]);
      }
    }
  };
  // Rows that lie far apart may share a few sets of the cache. If the rows of `to` lie further apart than those of `from`,
  // a few of them are therefore written from end to end before the next ones. With `ahead`, this order would not fetch
  // cells before they are read.
  if (!ahead && rows.to > columns.from) {
    for (Index i = 0; i < rows.count; i += kBlock) {
      for (Index j = 0; j < columns.count; j += kBlock) copy_block(i, j);
    }
    return;
  }
  for (Index j = 0; j < columns.count; j += kBlock) {
    if (ahead && rows.from == 1) fetch_ahead(from, rows, columns, j, std::min(j + kBlock, columns.count));
    for (Index i = 0; i < rows.count; i += kBlock) copy_block(i, j);
  }
}

// Transposes with stores that bypass the cache. Some rows at a time are first collected in the cache.
template <class T, class Change>
void stream_transpose(T* to, const T* from, const Axis& rows, const Axis& columns, Change change) {
  constexpr Index kWide = 1024 / sizeof(T);
  alignas(kCacheLine) T staged[kBlock * kWide];
  for (Index j = 0; j < columns.count; j += kWide) {
    const Index wide = std::min(kWide, columns.count - j);
    for (Index i = 0; i < rows.count; i += kBlock) {
      const Index high = std::min(kBlock, rows.count - i);
      transpose(staged, from + i * rows.from + j * columns.from, Axis{high, kWide, rows.from},
                Axis{wide, 1, columns.from}, false, change);
      for (Index r = 0; r < high; ++r) {
        stream_row(to + (i + r) * rows.to + j, staged + r * kWide, wide * static_cast<Index>(sizeof(T)));
      }
    }
  }
}

template <class T, class Change>
void copy_typed(T* to, const T* from, const Axes& axes, int count, Access access, Change change) {
  if (count == 0) {
    *to = change(*from);
    return;
  }
  const Axis inner = axes[count - 1];
  if (std::is_same_v<Change, Unchanged> && inner.to == 1 && inner.from == 1) {
    // `memcpy` bypasses the cache only for rows that are larger than most of the cache.
    const Index bytes = inner.count * static_cast<Index>(sizeof(T));
    const bool streams = access == Access::stream;
    auto row = [&](Index t, Index f) {
      streams ? stream_row(to + t, from + f, bytes) : (void)std::memcpy(to + t, from + f, bytes);
    };
    return for_each(axes.data(), count - 1, 0, 0, row);
  }
  // The axis that is contiguous, or closest to contiguous, in `from` becomes the second innermost axis.
  auto other = std::min_element(axes.begin(), axes.begin() + count - 1,
                                [](const Axis& a, const Axis& b) { return a.from < b.from; });
  if (count == 1 || inner.from < other->from) {
    auto row = [&](Index t, Index f) {
      for (Index i = 0; i < inner.count; ++i) to[t + i * inner.to] = change(from[f + i * inner.from]);
    };
    return for_each(axes.data(), count - 1, 0, 0, row);
  }
  Axes outer{};
  int outer_count = 0;
  for (auto axis = axes.begin(); axis != axes.begin() + count - 1; ++axis) {
    if (axis != other) outer[outer_count++] = *axis;
  }
  auto plane = [&](Index t, Index f) {
    if (access == Access::stream && inner.to == 1) return stream_transpose(to + t, from + f, *other, inner, change);
    transpose(to + t, from + f, *other, inner, access == Access::ahead, change);
  };
  for_each(outer.data(), outer_count, 0, 0, plane);
}

template <class T>
void add_typed(std::byte* to_bytes, const std::byte* from_bytes, const Axes& axes, int count) {
  auto to = reinterpret_cast<T*>(to_bytes);
  auto from = reinterpret_cast<const T*>(from_bytes);
  Axis inner = count == 0 ? Axis{1, 0, 0} : axes[count - 1];
  auto row = [&](Index t, Index f) {
    for (Index i = 0; i < inner.count; ++i) to[t + i * inner.to] += from[f + i * inner.from];
  };
  for_each(axes.data(), std::max(count - 1, 0), 0, 0, row);
}

bool has_none(const Strides& counts) {
  return std::any_of(counts.begin(), counts.end(), [](Index n) { return n <= 0; });
}

}  // namespace

void copy(std::byte* to, const Strides& to_stride, const std::byte* from, const Strides& from_stride,
          const Strides& counts, Index element, Access access, const Scale& scale) {
  if (has_none(counts)) return;
  if (to == from && to_stride == from_stride && scale.factor == 1) return;
  Axes axes{};
  int count = simplify(axes, to_stride, from_stride, counts);
  auto as = [&](auto type, auto change) {
    using T = decltype(type);
    copy_typed(reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from), axes, count, access, change);
  };
  if (scale.factor != 1) {
    const bool single = scale.real_bytes == 4, complex = element == 2 * scale.real_bytes;
    if (single && complex) return as(Complex<float>{}, Times<float>{static_cast<float>(scale.factor)});
    if (single) return as(float{}, Times<float>{static_cast<float>(scale.factor)});
    if (complex) return as(Complex<double>{}, Times<double>{scale.factor});
    return as(double{}, Times<double>{scale.factor});
  }
  switch (element) {
    case 1: return as(std::uint8_t{}, Unchanged{});
    case 2: return as(std::uint16_t{}, Unchanged{});
    case 4: return as(float{}, Unchanged{});
    case 8: return as(double{}, Unchanged{});
    case 16: return as(Complex<double>{}, Unchanged{});
  }
  throw Failure("elements of " + std::to_string(element) + " bytes cannot be moved");
}

void finish_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

void zero(std::byte* to, Strides to_stride, const Strides& counts, Index element) {
  if (has_none(counts)) return;
  for (auto& stride : to_stride) stride *= element;
  Axes axes{};
  int count = simplify(axes, to_stride, to_stride, counts);
  Index width = element;
  if (count > 0 && axes[count - 1].to == element) width *= axes[--count].count;
  for_each(axes.data(), count, 0, 0, [&](Index t, Index) { std::memset(to + t, 0, width); });
}

void add(std::byte* to, const Strides& to_stride, const std::byte* from, const Strides& from_stride,
         const Strides& counts, Number number) {
  if (has_none(counts)) return;
  Axes axes{};
  int count = simplify(axes, to_stride, from_stride, counts);
  switch (number) {
    case Number::f16: return add_typed<Half>(to, from, axes, count);
    case Number::bf16: return add_typed<Bfloat>(to, from, axes, count);
    case Number::f32: return add_typed<float>(to, from, axes, count);
    case Number::f64: return add_typed<double>(to, from, axes, count);
    case Number::c64: return add_typed<Complex<float>>(to, from, axes, count);
    case Number::c128: return add_typed<Complex<double>>(to, from, axes, count);
    // Integers are added as unsigned numbers, so that overflow wraps around as in XLA.
    case Number::i8: return add_typed<std::uint8_t>(to, from, axes, count);
    case Number::i16: return add_typed<std::uint16_t>(to, from, axes, count);
    case Number::i32: return add_typed<std::uint32_t>(to, from, axes, count);
    case Number::i64: return add_typed<std::uint64_t>(to, from, axes, count);
    case Number::other: break;
  }
  throw Failure("the adjoint of a halo exchange needs numbers that can be added");
}

}  // namespace decompops

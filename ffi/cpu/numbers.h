// The types of numbers, and the two that C++17 does not have: half precision and bfloat16.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace decompops {

// The types of numbers. Cells of type `other` can be copied, but not added.
enum class Number { f16, bf16, f32, f64, c64, c128, i8, i16, i32, i64, other };

// Not every compiler offers the two 16-bit floating-point types as an extension. They are added in single precision:
// `wide` returns a number in single precision, and `narrow` the bits of the nearest number of the type.

inline float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint32_t to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Removes the last `count` bits. Rounds to the nearest number or, if two numbers are equally near, to the even one.
inline std::uint32_t round_off(std::uint32_t bits, int count) {
  return (bits + (1u << (count - 1)) - 1 + ((bits >> count) & 1u)) >> count;
}

struct Bfloat {
  std::uint16_t bits;

  float wide() const { return from_bits(std::uint32_t{bits} << 16); }
  static std::uint16_t narrow(float value) {
    const std::uint32_t wide = to_bits(value);
    return static_cast<std::uint16_t>(std::isnan(value) ? (wide >> 16) | 0x40u : round_off(wide, 16));
  }
};

struct Half {
  std::uint16_t bits;

  float wide() const {
    const std::uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest < 0x0400u) return std::copysign(static_cast<float>(rest) * 0x1p-24f, from_bits(sign));
    // The exponent bias of float32 minus that of float16. Infinities and NaNs need the largest exponent of float32.
    const std::uint32_t bias = rest < 0x7c00u ? 112 : 224;
    return from_bits(sign | ((rest << 13) + (bias << 23)));
  }
  static std::uint16_t narrow(float value) {
    const std::uint32_t sign = (to_bits(value) >> 16) & 0x8000u;
    const float size = std::fabs(value);
    std::uint32_t rest;
    if (std::isnan(value)) {
      rest = 0x7e00u | ((to_bits(value) >> 13) & 0x03ffu);  // as processors do it
    } else if (size >= 65520) {
      rest = 0x7c00u;
    } else if (size < 0x1p-14f) {
      rest = static_cast<std::uint32_t>(std::nearbyint(size * 0x1p24f));  // in units of the smallest number
    } else {
      rest = round_off(to_bits(size * 0x1p-112f), 13);
    }
    return static_cast<std::uint16_t>(sign | rest);
  }
};

template <class T>
auto operator+=(T& sum, const T& other) -> decltype(sum.bits, sum) {
  sum.bits = T::narrow(sum.wide() + other.wide());
  return sum;
}

}  // namespace decompops

// Tests of the conversions to narrower types, with the definition of rounding.

#include "cpu/narrow.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/boxes.h"
#include "tests/expect.h"

using namespace decompops;

namespace {

struct Format {
  Wire wire;
  Index bytes;
  int bits, least;  // the bits of a mantissa, and the exponent of the smallest number that has all of them
};
constexpr Format kFormats[] = {{Wire::f32, 4, 24, -126}, {Wire::bf16, 2, 8, -126}, {Wire::f16, 2, 11, -14}};

double rounded_to(double number, int bits, int least) {
  if (number == 0) return number;
  const int unit = std::max(std::ilogb(number), least) - bits + 1;
  return std::ldexp(std::nearbyint(std::ldexp(number, -unit)), unit);
}

double rounded(double number, const Format& format, int exponent) {
  const double single = rounded_to(std::ldexp(number, exponent), 24, -126);
  return std::ldexp(rounded_to(single, format.bits, format.least), -exponent);
}

// Strides of a box that is stored in any order of axes, with gaps. With `in_rows`, the last axis is contiguous.
Strides strides_of(const Strides& counts, bool in_rows, Index& span) {
  std::vector<int> order(counts.size());
  for (int i = 0; i < counts.size(); ++i) order[i] = counts.size() - 1 - i;
  std::shuffle(order.begin() + (in_rows ? 1 : 0), order.end(), engine);
  Strides strides = counts;
  span = 1;
  for (int axis : order) {
    strides[axis] = span;
    span = span * counts[axis] + (in_rows ? 0 : random(0, 2));
  }
  return strides;
}

}  // namespace

// From one box to a narrow one, to another narrow one with other exponents, and back.
template <class Real>
void test_narrow_copies() {
  for (int trial = 0; trial < 300; ++trial) {
    const Format& format = kFormats[random(sizeof(Real) == 4 ? 1 : 0, 2)];
    const Index reals = random(1, 2), element = reals * static_cast<Index>(sizeof(Real));
    const Strides counts{random(1, 3), random(1, 20), random(1, 20), random(1, trial % 9 == 0 ? 300 : 30)};
    Index spans[4];
    const bool in_rows = random(0, 3) > 0;
    const Strides strides[] = {strides_of(counts, random(0, 1), spans[0]), strides_of(counts, in_rows, spans[1]),
                               strides_of(counts, in_rows, spans[2]), strides_of(counts, random(0, 1), spans[3])};
    std::vector<Real> from(spans[0] * reals), to(spans[3] * reals, 7), right = to;
    for (Real& number : from) {
      number = static_cast<Real>(
          std::ldexp(static_cast<double>(random(-(1 << 26), 1 << 26)), -26 - static_cast<int>(random(0, 30))));
    }
    std::vector<std::byte> first(spans[1] * reals * format.bytes), second(spans[2] * reals * format.bytes);
    std::vector<Exponent> exponents[2];
    for (auto& some : exponents) {
      for (Index field = 0; field < counts[0]; ++field)
        some.push_back(format.wire == Wire::f16 ? static_cast<int>(random(-9, 14)) : 0);
    }
    const Narrow narrow{format.wire, static_cast<Index>(sizeof(Real)) / format.bytes, 0};
    auto bytes = [](auto& numbers) { return reinterpret_cast<std::byte*>(numbers.data()); };
    const Cells stops[] = {{bytes(from), strides[0]},
                           {first.data(), strides[1], narrow, exponents[0].data()},
                           {second.data(), strides[2], narrow, exponents[1].data()},
                           {bytes(to), strides[3]}};
    const double factor = random(0, 1) ? 1 : 0.25;
    for (int i = 0; i < 3; ++i) {
      copy(stops[i + 1], stops[i], counts, element, Access::plain, {i == 0 ? factor : 1, sizeof(Real)});
    }
    for_all(counts, [&](const Strides& cell) {
      for (Index i = 0; i < reals; ++i) {
        double number = factor * from[at(cell, strides[0]) * reals + i];
        for (const auto& some : exponents) number = rounded(number, format, some[cell[0]]);
        right[at(cell, strides[3]) * reals + i] = static_cast<Real>(number);
      }
    });
    expect(to == right, "narrow copy " + std::to_string(trial));
  }
}

template void test_narrow_copies<float>();
template void test_narrow_copies<double>();

// Numbers that are converted one by one have the same bits as those in vectors, infinities and NaNs included.
void test_bits_of_vectors() {
  const Index count = 1 << 16;
  std::vector<std::uint32_t> numbers(count);
  for (auto& bits : numbers) bits = static_cast<std::uint32_t>(engine());
  for (std::size_t i = 0; i < 4096; ++i) numbers[i] |= 0x7fc00000u;  // quiet NaNs
  numbers[4096] = 0x7f800000u;
  const Exponent none = 0;
  for (const Format& format : {kFormats[1], kFormats[2]}) {
    const Narrow narrow{format.wire, 2, 0};
    std::vector<std::uint16_t> whole(count), single(count);
    std::vector<std::uint32_t> back(count), back_single(count);
    auto convert = [&](auto& to, auto& from, Index first, Index cells, bool narrows) {
      Cells target{reinterpret_cast<std::byte*>(to.data() + first), {1, 1}},
          source{reinterpret_cast<std::byte*>(from.data() + first), {1, 1}};
      Cells& stored = narrows ? target : source;
      stored.narrow = narrow;
      stored.exponents = &none;
      copy(target, source, {1, cells}, 4);
    };
    convert(whole, numbers, 0, count, true);
    convert(back, whole, 0, count, false);
    for (Index i = 0; i < count; ++i) {
      convert(single, numbers, i, 1, true);
      convert(back_single, whole, i, 1, false);
    }
    expect(whole == single, "narrow numbers differ");
    expect(back == back_single, "wide numbers differ");
  }
}

void test_norms() {
  for (const double size : {1e-200, 1.0, 1e200}) {
    const Region region{{0, 0, 0}, {1, 30, 300}};
    std::vector<double> numbers(9000, 2 * size);
    Memory memory{};
    memory.own[kInput] = reinterpret_cast<std::byte*>(numbers.data());
    const double norm = norm_of(dense(kInput, 0, region), memory, 8, 8);
    expect(std::fabs(norm / size - 2 * std::sqrt(9000.0)) < 1e-9, "a norm is wrong");
    expect(std::ldexp(norm, exponent_for(norm, 8)) < 32768, "an exponent is too large");
    expect(std::ldexp(norm, exponent_for(norm, 8)) >= 16384, "an exponent is too small");
    numbers[7000] = std::numeric_limits<double>::quiet_NaN();
    expect(std::isnan(norm_of(dense(kInput, 0, region), memory, 8, 8)), "a NaN is lost");
  }
  expect(std::ldexp(3e38, exponent_for(3e38, 4)) < 32768, "the exponent of the largest numbers is too large");
  expect(exponent_for(0, 4) == 0 && exponent_for(INFINITY, 4) == 0 && exponent_for(1e-38, 4) == 110, "exponents");
}

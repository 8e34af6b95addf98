// Tests of the parts that move and transform cells. Each test compares the results with those of the simplest code for
// the same task.

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <numeric>

#include "cpu/copy.h"
#include "cpu/fft.h"
#include "cpu/lines.h"
#include "tests/boxes.h"
#include "tests/expect.h"
#include "tests/transforms.h"

using namespace decompops;

namespace {

// Returns strides of a box of `counts` cells, whose axes are stored in a random order and with random gaps. Sets `span`
// to the number of cells from the start of the box to its end, gaps included.
Strides random_strides(const Strides& counts, Index& span) {
  std::vector<int> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), engine);
  Strides strides = counts;
  span = 1;
  for (int axis : order) {
    strides[axis] = span;
    span = span * counts[axis] + random(0, 3);
  }
  return strides;
}

// Returns random numbers of cells for the first axes of a box: at least one axis, and at most `most[i]` cells along
// axis i.
Strides random_counts(const std::vector<Index>& most) {
  Strides counts;
  for (std::size_t axes = random(1, static_cast<Index>(most.size())), i = 0; i < axes; ++i) {
    counts.push_back(random(1, most[i]));
  }
  return counts;
}

void test_copies() {
  for (int trial = 0; trial < 400; ++trial) {
    const Index element = Index{1} << random(0, 4);
    const Strides counts = random_counts({3, 20, 20, 30, 2, 2});
    Index from_span, to_span;
    const Strides from_stride = random_strides(counts, from_span), to_stride = random_strides(counts, to_span);
    std::vector<std::byte> from(from_span * element), to(to_span * element), right;
    for (auto& byte : from) byte = static_cast<std::byte>(random(0, 255));
    for (auto& byte : to) byte = static_cast<std::byte>(random(0, 255));
    right = to;
    for_all(counts, [&](const Strides& cell) {
      std::memcpy(&right[at(cell, to_stride) * element], &from[at(cell, from_stride) * element], element);
    });
    copy(to.data(), to_stride, from.data(), from_stride, counts, element, static_cast<Access>(trial % 3));
    finish_streams();
    expect(to == right, "copy " + std::to_string(trial));
    for_all(counts, [&](const Strides& cell) { std::memset(&right[at(cell, to_stride) * element], 0, element); });
    zero(to.data(), to_stride, counts, element);
    expect(to == right, "zero " + std::to_string(trial));
  }
}

// Numbers are small integers and the factor is a power of two, so that nothing is rounded.
template <class Real>
void test_scaled_copies() {
  for (int trial = 0; trial < 200; ++trial) {
    const Index reals = random(1, 2);
    const Strides counts = random_counts({2, 12, 12, 20, 2, 2});
    Index from_span, to_span;
    const Strides from_stride = random_strides(counts, from_span), to_stride = random_strides(counts, to_span);
    std::vector<Real> from(from_span * reals), to(to_span * reals, 7), right = to;
    for (Real& number : from) number = static_cast<Real>(random(-9, 9));
    for_all(counts, [&](const Strides& cell) {
      for (Index i = 0; i < reals; ++i) {
        right[at(cell, to_stride) * reals + i] = from[at(cell, from_stride) * reals + i] * Real(0.25);
      }
    });
    copy(reinterpret_cast<std::byte*>(to.data()), to_stride, reinterpret_cast<const std::byte*>(from.data()),
         from_stride, counts, reals * static_cast<Index>(sizeof(Real)), static_cast<Access>(trial % 3),
         {0.25, sizeof(Real)});
    finish_streams();
    expect(to == right, "scaled copy " + std::to_string(trial));
  }
}

void test_sums() {
  const Strides counts{2, 5, 6, 3, 7};
  Index from_span, to_span;
  const Strides from_stride = random_strides(counts, from_span), to_stride = random_strides(counts, to_span);
  std::vector<double> from(from_span, 1.5), to(to_span, 2), right = to;
  for_all(counts, [&](const Strides& cell) { right[at(cell, to_stride)] += from[at(cell, from_stride)]; });
  add(reinterpret_cast<std::byte*>(to.data()), to_stride, reinterpret_cast<std::byte*>(from.data()), from_stride,
      counts, Number::f64);
  expect(to == right, "sum");
}

// The value of a number in half precision, computed from its bits by the definition.
double half(unsigned bits) {
  const double sign = bits & 0x8000u ? -1 : 1, mantissa = bits & 0x3ffu;
  const int exponent = (bits >> 10) & 31;
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
}

void test_sums_of_halves() {
  auto sum = [](unsigned a, unsigned b) {
    std::uint16_t to = static_cast<std::uint16_t>(a), from = static_cast<std::uint16_t>(b);
    add(reinterpret_cast<std::byte*>(&to), {}, reinterpret_cast<std::byte*>(&from), {}, {1, 1, 1, 1}, Number::f16);
    return unsigned{to};
  };
  for (unsigned a = 0; a < 65536; ++a) {
    const bool number = !std::isnan(half(a));
    expect(number ? half(sum(a, 0)) == half(a) : std::isnan(half(sum(a, 0))), "half " + std::to_string(a));
    const auto b = static_cast<unsigned>(random(0, 65535));
    const double exact = half(a) + half(b), found = half(sum(a, b));
    const std::string what = "halves " + std::to_string(a) + " + " + std::to_string(b);
    if (std::isnan(exact) || std::fabs(exact) >= 65520) {
      expect(std::isnan(exact) ? std::isnan(found) : found == std::copysign(INFINITY, exact), what);
      continue;
    }
    // No neighbour of the result is nearer to the exact sum than the result. If the last bit of the result is 1, both
    // neighbours are farther away, because ties round to even.
    const unsigned bits = sum(a, b);
    for (unsigned other : {bits - 1, bits + 1}) {
      if ((bits & 0x7fffu) == 0 || std::isinf(half(other & 0xffffu))) continue;
      const double error = std::fabs(found - exact), theirs = std::fabs(half(other) - exact);
      expect(bits % 2 == 0 ? error <= theirs : error < theirs, what);
    }
  }
}

void test_regions() {
  for (int trial = 0; trial < 200; ++trial) {
    const int axes = trial % 5 + 1;
    auto box = [axes] {
      Region region;
      for (int axis = 0; axis < axes; ++axis) {
        region.lo.push_back(random(0, 4));
        region.hi.push_back(region.lo[axis] + random(0, 4));
      }
      return region;
    };
    auto inside = [](const Region& region, const Strides& cell) {
      for (int axis = 0; axis < cell.size(); ++axis) {
        if (cell[axis] < region.lo[axis] || cell[axis] >= region.hi[axis]) return 0;
      }
      return 1;
    };
    const Region whole = box();
    const std::vector<Region> parts{box(), box()}, rest = difference(whole, parts);
    for_all(Strides::filled(axes, 8), [&](const Strides& cell) {
      const bool right = inside(whole, cell) && !inside(parts[0], cell) && !inside(parts[1], cell);
      int found = 0;
      for (const Region& region : rest) found += inside(region, cell);
      expect(found == right, "difference " + std::to_string(trial));
    });
  }
}

// A field of 1 to 5 axes has up to two pieces, side by side along any axis, as if two ranks had sent them. Lines may begin
// in one piece and end in the other. Cells that no piece has count as zeros.
void test_lines() {
  using Kind = Transform::Kind;
  for (int trial = 0; trial < 400; ++trial) {
    Strides counts = random_counts({2, 5, 20, 3, 2});
    counts.push_back(random(1, 20));
    const int axes = counts.size(), axis = static_cast<int>(random(1, axes - 1));
    const Kind kind = static_cast<Kind>(random(0, 3));
    const bool waves = kind == Kind::r2r || (kind == Kind::c2c && random(0, 1));
    const Transform transform = waves ? random_waves(kind) : Transform{kind, random(0, 1) ? 1 : -1, random(0, 1) == 1};
    const double scale = trial % 4 == 0 ? 1 : 0.5;
    const Lines lines{axis, transform, random(2, 20), scale};
    const Region whole{Strides::filled(axes), counts};
    const Region before = whole.with(axis, 0, lines.cells_in()), after = whole.with(axis, 0, lines.cells_out());
    const int cut = random(0, 1) ? axis : static_cast<int>(random(0, axes - 1));
    const Index half = random(1, before.count(cut));
    const Region first = before.with(cut, 0, half), second = before.with(cut, half, before.count(cut));
    const Index reals_in = transform.reals_in(), reals_out = transform.reals_out();
    const Index element = reals_in * static_cast<Index>(sizeof(double));
    const auto arranged = random(0, 1) ? spaced : [](Buffer buffer, Index offset, const Region& region, Index) {
      return dense(buffer, offset, region);
    };
    const Piece piece = arranged(kInput, 0, first, element),
                other = arranged(kInput, span(piece, element), second, element);
    // Aligned as XLA's buffers are, so that FFTW may use lines where they lie.
    std::vector<double> inputs((span(piece, element) + span(other, element)) / sizeof(double) + 8);
    std::vector<double> outputs(after.volume() * reals_out + 8);
    auto aligned = [](std::vector<double>& reals) {
      const std::uintptr_t beyond = reinterpret_cast<std::uintptr_t>(reals.data()) % 64;
      return reals.data() + (64 - beyond) % 64 / sizeof(double);
    };
    double *input = aligned(inputs), *output = aligned(outputs);
    for (double& real : inputs) real = random(-9, 9) / 9.0;
    PerAxis<int> order = natural(axes - 1);
    std::shuffle(order.begin(), order.end(), engine);
    std::vector<Piece> pieces = {piece};
    const bool has_other = !second.empty() && random(0, 2) > 0;
    if (has_other) pieces.push_back(other);
    const Field from{before, trial % 2 == 0 ? pieces : merged(pieces, element)};
    // The result as one piece, or as two pieces side by side.
    const Piece result = dense(kResult, 0, after, order);
    const int across = static_cast<int>(random(0, axes - 1));
    const Index middle = trial % 3 == 0 ? after.count(across) : after.count(across) / 2;
    const Index result_element = reals_out * static_cast<Index>(sizeof(double));
    Field to{after, {}};
    for (const Region& part : {after.with(across, 0, middle), after.with(across, middle, after.count(across))}) {
      if (!part.empty()) to.pieces.push_back(clipped(result, part, result_element));
    }
    Memory memory{};
    memory.own[kInput] = reinterpret_cast<std::byte*>(input);
    memory.own[kResult] = reinterpret_cast<std::byte*>(output);
    LinePass<double>(lines, from, to, trial % 3 == 0, Planning::estimate, memory, {}).run(before);
    finish_streams();
    auto read = [](const double* cells, Index at, Index reals) {
      return Cell(cells[reals * at], reals == 2 ? cells[2 * at + 1] : 0);
    };
    auto value = [&](Strides cell) {
      const Piece& here = cell[cut] < half ? piece : other;
      if (cell[cut] >= half && !has_other) return Cell(0);
      for (int i = 0; i < axes; ++i) cell[i] -= here.region.lo[i];
      return read(input, here.offset / element + at(cell, here.stride), reals_in);
    };
    for_all(after.counts(), [&](Strides cell) {
      Cell sum = 0;
      const Index k = cell[axis];
      const Cell got = read(output, at(cell, result.stride), reals_out);
      for (cell[axis] = 0; cell[axis] < lines.cells_in(); ++cell[axis]) {
        sum += scale * value(cell) * weight(transform, cell[axis], k, lines.length);
      }
      if (kind == Kind::c2r) sum = sum.real();
      expect(std::abs(got - sum) < 1e-12 * static_cast<double>(lines.length), "transform " + std::to_string(trial));
    });
  }
}

void test_merged_pieces() {
  // A box in parts along its first axis. They are one piece if they follow each other in memory, and several if there
  // is a gap, if they lie in different buffers, or if a part is missing.
  const Region whole{{0, 0, 0}, {1, 6, 4}};
  const Piece box = dense(kReceive, 64, whole, natural(2));
  auto part = [&](Index low, Index high) { return clipped(box, whole.with(1, low, high), 8); };
  const std::vector<Piece> parts = {part(0, 1), part(1, 4), part(4, 6)};
  const auto one = merged(parts, 8);
  expect(one.size() == 1 && one[0].offset == 64 && one[0].region.hi == whole.hi, "parts of a box are one piece");
  auto moved = parts, elsewhere = parts;
  moved[1].offset += 8;
  elsewhere[2].buffer = kReceive2;
  expect(merged(moved, 8).size() == 3, "a piece has moved");
  expect(merged(elsewhere, 8).size() == 2, "a piece is in another buffer");
  expect(merged({parts[0], parts[2]}, 8).size() == 2, "a piece is missing");
  expect(merged({parts[1], parts[0], parts[2]}, 8).size() == 3, "pieces are in another order");
}

void test_lines_of_a_gap() {
  // One piece has a single row of ones, along the lines or across them. Cells that no piece has count as zeros. Where it
  // has one line of several, its neighbours along two axes are neighbours in memory, but the lines do not overlap.
  const Region region{{0, 0, 0, 0}, {1, 1, 8, 3}};
  for (int along : {2, 3}) {
    for (int cut : {2, 3}) {
      std::vector<std::complex<float>> input(region.volume(), 1), output(region.volume());
      const Field from{region, {dense(kInput, 0, region.with(cut, 0, 1))}};
      const Field to{region, {dense(kResult, 0, region)}};
      Memory memory{};
      memory.own[kInput] = reinterpret_cast<std::byte*>(input.data());
      memory.own[kResult] = reinterpret_cast<std::byte*>(output.data());
      const Index length = region.count(along);
      const Lines lines{along, {Transform::Kind::c2c, -1}, length, 1};
      LinePass<float>(lines, from, to, false, Planning::measure, memory, {}).run(region);
      finish_streams();
      for_all(region.counts(), [&](const Strides& cell) {
        // A delta's spectrum is flat, and that of a constant is a delta.
        float exact = 1;
        if (cut != along) exact = cell[cut] == 0 && cell[along] == 0 ? static_cast<float>(length) : 0;
        const auto got = output[at(cell, to.pieces[0].stride)];
        expect(std::abs(got - exact) < 1e-5f, "lines along " + std::to_string(along) + ", cut " + std::to_string(cut));
      });
    }
  }
}

void test_loading_of_others() {
  for (const char* path : {"libm.so.6", "no such library"}) {
    bool refused = false;
    try {
      load_fftw(path, path);
    } catch (const Failure&) {
      refused = true;
    }
    expect(refused, path);
  }
}

}  // namespace

int main() {
  test("copies", test_copies);
  test("scaled copies, single precision", test_scaled_copies<float>);
  test("scaled copies, double precision", test_scaled_copies<double>);
  test("sums", test_sums);
  test("sums of halves", test_sums_of_halves);
  test("narrow copies, single precision", test_narrow_copies<float>);
  test("narrow copies, double precision", test_narrow_copies<double>);
  test("bits of vectors", test_bits_of_vectors);
  test("norms", test_norms);
  test("regions", test_regions);
  test("merged pieces", test_merged_pieces);
  for (int ndim : {1, 3, kMaxAxes}) test("decoding", [ndim] { test_decoding(ndim); });
  test("decoding of noise", test_decoding_of_noise);
  test("points", test_points);
  test("rows", test_rows);
  if (has_ducc()) {
    test("lines, DUCC", test_lines);
    test("lines of a gap, DUCC", test_lines_of_a_gap);
    test("resizes, DUCC", test_resizes);
  }
  if (dlopen("libfftw3.so.3", RTLD_NOW) != nullptr && dlopen("libfftw3f.so.3", RTLD_NOW) != nullptr) {
    load_fftw("libfftw3.so.3", "libfftw3f.so.3");
    test("lines, FFTW", test_lines);
    test("lines of a gap, FFTW", test_lines_of_a_gap);
    test("resizes, FFTW", test_resizes);
  }
  test("a library without FFTW's functions", test_loading_of_others);
  return failed_tests > 0;
}

// Tests of points on a block: `deposit` and `read` are transposes, for any coordinates and any number of threads.

#include "cpu/points.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/order.h"
#include "tests/expect.h"

using namespace decompops;

namespace {

std::vector<double> numbers(Index count, double low, double high) {
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> result(count);
  for (double& number : result) number = uniform(engine);
  return result;
}

void test_order() {
  const int kinds = static_cast<int>(random(1, 9));
  std::vector<std::int32_t> keys(random(0, 1) == 1 ? random(0, 50) : random(9000, 20000));
  for (auto& key : keys) key = static_cast<std::int32_t>(random(-1, kinds));
  const auto count = static_cast<std::int32_t>(keys.size());
  std::vector<std::int32_t> order(count, -1), found(kinds), expected, numbers(kinds);
  for (int kind = 0; kind < kinds; ++kind) {
    for (std::int32_t i = 0; i < count; ++i) {
      if (keys[i] == kind) expected.push_back(i);
    }
    numbers[kind] = static_cast<std::int32_t>(std::count(keys.begin(), keys.end(), kind));
  }
  expected.resize(count, -1);
  put_in_order(keys.data(), count, kinds, order.data(), found.data(), static_cast<int>(random(1, 3)));
  expect(order == expected && found == numbers, "keys are in the wrong order");
}

void expect_transposes(const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& c,
                       const std::vector<double>& d) {
  double first = 0, second = 0, scale = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    first += a[i] * b[i];
    scale += std::abs(a[i] * b[i]);
  }
  for (std::size_t i = 0; i < c.size(); ++i) second += c[i] * d[i];
  expect(std::abs(first - second) <= 1e-10 * scale, "two operators are no transposes");
}

}  // namespace

void test_points() {
  for (int round = 0; round < 20; ++round) test_order();
  for (int round = 0; round < 60; ++round) {
    Cloud cloud;
    cloud.first_axis = static_cast<int>(random(0, 2));
    const int ndim = cloud.ndim(), width = static_cast<int>(random(1, Cloud::kMostWidth)), powers = 3;
    for (int i = cloud.first_axis; i < Cloud::kMostAxes; ++i) {
      cloud.axes[i] = {random(1, 90), random(0, 1) == 1, width, numbers(width * powers, -1, 1)};
    }
    const Index count = random(0, 1) == 1 ? random(0, 50) : random(4000, 9000), batch = random(1, 2);
    std::vector<double> positions = numbers(count * ndim, -100, 200);
    if (random(0, 1) == 1) {  // neighbours beside each other
      const auto steps = numbers(count * ndim, -0.2, 0.2);
      for (Index i = ndim; i < count * ndim; ++i) positions[i] = positions[i - ndim] + steps[i];
    }
    for (const double wild : {-1e300, 1e18, -0.0}) {
      if (count > 0) positions[random(0, count * ndim - 1)] = wild;
    }
    const auto values = numbers(batch * count, -1, 1), cells = numbers(batch * cloud.cells(), -1, 1);
    Points<double> points{positions.data(), count, count - (random(0, 1) == 1 ? count / 3 : 0), {}};
    std::vector<double> block(cells.size(), 7), again(cells.size(), 7), found(values.size(), 7);
    deposit(cloud, points, values.data(), batch, block.data(), 1);
    deposit(cloud, points, values.data(), batch, again.data(), 3);
    expect(block == again, "a deposit depends on the number of threads");
    read(cloud, points, cells.data(), batch, found.data(), 3);
    expect_transposes(block, cells, found, values);
    if (ndim == Cloud::kMostAxes && width <= Cloud::kMostSlopes) {
      const auto along = numbers(count * ndim, -1, 1);
      std::vector<double> slopes(along.size(), 7);
      deposit(cloud, points, values.data(), batch, block.data(), 3, along.data());
      read(cloud, points, cells.data(), batch, found.data(), 3, along.data());
      find_slopes(cloud, points, values.data(), cells.data(), batch, slopes.data(), 3);
      expect_transposes(block, cells, found, values);
      expect_transposes(block, cells, slopes, along);
    }
    if (points.live == 0) continue;
    for (const double wild : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      positions[random(0, points.live * ndim - 1)] = wild;
      deposit(cloud, points, values.data(), batch, block.data(), 3);
      read(cloud, points, cells.data(), batch, found.data(), 3);
      const auto is_nan = [](double number) { return std::isnan(number); };
      expect(std::all_of(block.begin(), block.end(), is_nan) && std::all_of(found.begin(), found.end(), is_nan),
             "a point that is not finite counts as one at home");
    }
  }
}

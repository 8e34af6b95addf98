// Tests of `decode`: the plans that it makes of the numbers from Python, and the numbers that it refuses.

#include <algorithm>
#include <vector>

#include "stamp.h"
#include "tests/expect.h"

using namespace decompops;

// A number without a meaning is refused, at every position of a plan.
void test_decoding(int ndim) {
  std::vector<std::int64_t> blocks;
  auto per_axis = [&](std::int64_t first, std::int64_t others) {
    blocks.push_back(first);
    blocks.insert(blocks.end(), ndim - 1, others);
  };
  per_axis(8, 8);   // lengths
  per_axis(2, 1);   // parts
  per_axis(0, -1);  // mesh axes
  for (int axis = 0; axis < ndim; ++axis) blocks.push_back(axis);
  blocks.insert(blocks.end(), 2 * ndim, 0);
  std::vector<std::int64_t> numbers{DECOMPOPS_STAMP, static_cast<std::int64_t>(Wire::f16), ndim};
  auto append = [&](const std::vector<std::int64_t>& more) { numbers.insert(numbers.end(), more.begin(), more.end()); };
  append(blocks);
  std::vector<std::size_t> starts;
  const std::vector<std::vector<std::int64_t>> stages{
      {1, 0, -1, 0, 1, ndim - 1}, {2, 0, 1, 0}, {1, 2, 1, 1, 1, 0},  {4}, {5, -1, 3},
      {1, 0, -1, 0, 1, 0},        {7, 1, 0},    {8, 1, 3, -1, 1, 0}, {6}};
  const std::size_t opening = 4;
  for (const auto& stage : stages) {
    starts.push_back(numbers.size());
    append(stage);
    append(blocks);
  }
  auto refused = [](const std::vector<std::int64_t>& numbers) {
    try {
      decode(numbers.data(), numbers.size(), 1);
      return false;
    } catch (const Failure&) {
      return true;
    }
  };
  expect(!refused(numbers), "a plan is refused");
  const Plan plan = decode(numbers.data(), numbers.size(), 1);
  expect(plan.stages.size() == stages.size() && plan.target.ndim() == ndim, "a stage or an axis is skipped");
  expect(plan.wire == Wire::f16, "this is not the type that is sent");
  const Transform& real = plan.stages[2].transform;
  expect(plan.stages[opening].count == 3 && plan.stages[opening].axis == -1, "these are not the pieces");
  const Transform& sines = plan.stages[7].transform;
  expect(sines.family == Transform::Family::sine && sines.type == 3 && sines.power == -1, "these are not the sines");
  expect(real.kind == Transform::Kind::c2r && real.sign == 1 && real.weighted, "this is not the real transform");
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    for (const std::int64_t wrong : {std::int64_t{-99}, std::int64_t{1} << 60}) {
      auto changed = numbers;
      changed[i] = wrong;
      expect(refused(changed), "number " + std::to_string(i) + " may be " + std::to_string(wrong));
    }
    const auto start = std::find(starts.begin(), starts.end(), i);
    const bool whole = start != starts.end() && start <= starts.begin() + opening;  // a plan of fewer stages
    expect(whole || refused({numbers.begin(), numbers.begin() + i}), "a plan of " + std::to_string(i) + " numbers");
  }
  auto changed = numbers;
  changed[starts[opening] + 1] = 0;
  expect(refused(changed), "pieces are cut along an axis that is transformed");
  changed = numbers;
  changed[3] = changed[2 + ndim] = std::int64_t{1} << 40;
  expect(refused(changed) == (ndim > 1), "the product of the lengths is too large");
  changed = numbers;
  changed[starts[3]] = 6;
  expect(refused(changed), "pieces are joined that have not been opened");
  for (const std::int64_t axes : {0, kMaxAxes + 1}) {
    numbers[2] = axes;
    expect(refused(numbers), "a grid may have " + std::to_string(axes) + " axes");
  }
  numbers[2] = ndim;
  numbers[starts[3]] = 9;
  expect(refused(numbers), "there is a tenth stage");
}

// Random numbers are either refused or decoded. They cause no crash.
void test_decoding_of_noise() {
  int decoded = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Index ndim = random(1, 3);
    std::vector<std::int64_t> numbers{DECOMPOPS_STAMP, static_cast<std::int64_t>(Wire::f16), ndim};
    for (Index axis = 0; axis < 2 * ndim; ++axis) numbers.push_back(random(1, 9));
    for (Index axis = 0; axis < ndim; ++axis) numbers.push_back(random(-1, 1));
    for (Index axis = 0; axis < ndim; ++axis) numbers.push_back(axis);
    for (Index i = random(0, 4 * ndim); i > 0; --i) numbers.push_back(random(-1, 8));
    try {
      decode(numbers.data(), numbers.size(), 2);
      ++decoded;
    } catch (const Failure&) {
    }
  }
  expect(decoded > 0, "nothing has a meaning");
}

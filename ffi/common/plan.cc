#include "common/plan.h"

#include <algorithm>

namespace decompops {
namespace {

class Reader {
 public:
  Reader(const std::int64_t* numbers, std::size_t count) : next_(numbers), end_(numbers + count) {}

  Index number() {
    if (next_ == end_) throw Failure("the description of an operator is too short: Python and C++ differ in version");
    return *next_++;
  }
  bool empty() const { return next_ == end_; }

  Layout layout() {
    Layout layout;
    for (auto& n : layout.lengths) n = number();
    for (auto& n : layout.parts) n = number();
    for (auto& n : layout.mesh_axis) n = static_cast<int>(number());
    for (auto& n : layout.order) n = static_cast<int>(number());
    for (auto& pair : layout.halo) {
      for (auto& n : pair) n = number();
    }
    return layout;
  }

  Stage stage() {
    Stage stage;
    stage.kind = static_cast<Stage::Kind>(number());
    stage.transposed = number();
    stage.periodic = number();
    stage.weighted = number();
    stage.axis = static_cast<int>(number());
    stage.transform = static_cast<Transform>(number());
    stage.sign = static_cast<int>(number());
    for (Index n = number(); n > 0; --n) stage.axes.push_back(static_cast<int>(number()));
    stage.before = layout();
    stage.after = layout();
    return stage;
  }

 private:
  const std::int64_t *next_, *end_;
};

}  // namespace

Index Layout::valid(int axis, Index part) const {
  return std::clamp<Index>(lengths[axis] - part * core(axis), 0, core(axis));
}

std::uint64_t hash_bytes(const void* data, std::size_t count, std::uint64_t seed) {
  // FNV-1a: no cryptography, the same everywhere.
  auto bytes = static_cast<const unsigned char*>(data);
  std::uint64_t hash = 14695981039346656037ull ^ seed;
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

std::uint64_t Plan::fingerprint() const {
  std::uint64_t hash = hash_bytes(numbers.data(), numbers.size() * sizeof(numbers[0]), 0);
  hash = hash_bytes(mesh.data(), mesh.size() * sizeof(mesh[0]), hash);
  hash = hash_bytes(ranks.data(), ranks.size() * sizeof(ranks[0]), hash);
  hash = hash_bytes(&scale, sizeof(scale), hash);
  return hash_bytes(label.data(), label.size(), hash);
}

Plan decode(const std::int64_t* numbers, std::size_t count) {
  Reader reader(numbers, count);
  Plan plan;
  plan.numbers.assign(numbers, numbers + count);
  plan.source = reader.layout();
  plan.target = reader.layout();
  while (!reader.empty()) plan.stages.push_back(reader.stage());
  return plan;
}

}  // namespace decompops

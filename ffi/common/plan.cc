#include "common/plan.h"

#include <algorithm>

#include "stamp.h"

namespace decompops {
namespace {

class Reader {
 public:
  Reader(const std::int64_t* numbers, std::size_t count, std::size_t mesh_axes)
      : next_(numbers), end_(numbers + count), mesh_axes_(static_cast<Index>(mesh_axes)) {}

  // The next number, which must be between `low` and `high`.
  Index number(const char* what, Index low, Index high) {
    if (next_ == end_) refuse(std::string("it ends before ") + what);
    const Index number = *next_++;
    if (number < low || number > high) refuse(std::string(what) + " is " + std::to_string(number));
    return number;
  }
  bool empty() const { return next_ == end_; }

  // The number of grid axes. It comes before all values with one entry for each axis.
  void dimensions() { ndim_ = static_cast<int>(number("the number of grid axes", 1, kMaxAxes)); }

  Blocks blocks() {
    Blocks blocks;
    blocks.lengths = per_axis<Index>([&] { return number("a length", 1, kLargest); });
    blocks.parts = per_axis<Index>([&] { return number("a number of blocks", 1, kLargest); });
    blocks.mesh_axis = per_axis<int>([&] { return static_cast<int>(number("a mesh axis", -1, mesh_axes_ - 1)); });
    int stored = 0;
    blocks.order = per_axis<int>([&] {
      const int at = axis("a stored axis");
      stored |= 1 << at;
      return at;
    });
    if (stored != (1 << ndim_) - 1) refuse("the order of storage does not have every axis");
    blocks.halo = per_axis<std::array<Index, 2>>([&] {
      const Index before = number("a halo", 0, kLargest);
      return std::array<Index, 2>{before, number("a halo", 0, kLargest)};
    });
    Index cells = 1;
    for (int axis = 0; axis < ndim_; ++axis) {
      if (__builtin_mul_overflow(cells, blocks.extent(axis), &cells) || cells > kLargest) {
        throw Failure("out of memory: a device's block has more than " + std::to_string(kLargest) +
                      " cells. Use a smaller grid or more devices");
      }
    }
    return blocks;
  }

  // The next stage, which starts from a field with the layout `before`.
  Stage stage(const Blocks& before) {
    Stage stage{};
    stage.kind = static_cast<Stage::Kind>(number("a stage", 0, static_cast<Index>(Stage::kLast)));
    stage.axis = -1;
    switch (stage.kind) {
      case Stage::Kind::move:
      case Stage::Kind::clear: break;
      case Stage::Kind::fourier:
        stage.transform.kind =
            static_cast<Transform::Kind>(number("a transform", 0, static_cast<Index>(Transform::Kind::c2r)));
        stage.transform.sign = static_cast<int>(number("a sign", -1, 1));
        if (stage.transform.sign == 0) refuse("a transform has no sign");
        stage.transform.weighted = number("`weighted`", 0, 1);
        stage.axes = axes();
        break;
      case Stage::Kind::extend:
        stage.axis = axis("the axis of a halo");
        stage.periodic = number("`periodic`", 0, 1);
        stage.transposed = number("`transposed`", 0, 1);
        break;
      case Stage::Kind::crop: stage.transposed = number("`transposed`", 0, 1); break;
      case Stage::Kind::pieces:
        stage.axis = static_cast<int>(number("the axis of pieces", -1, ndim_ - 1));
        stage.count = number("a number of pieces", 1, kLargest);
        break;
      case Stage::Kind::joined: break;
      case Stage::Kind::resize: stage.axes = axes(); break;
      case Stage::Kind::cosine:
        stage.transform.kind = Transform::Kind::r2r;
        stage.transform.family = number("`is_sine`", 0, 1) ? Transform::Family::sine : Transform::Family::cosine;
        stage.transform.type = static_cast<int>(number("a type", 2, 3));
        stage.transform.power = static_cast<int>(number("a power", -kPowers, kPowers));
        stage.axes = axes();
        break;
    }
    stage.before = before;
    stage.after = blocks();
    check_pieces(stage);
    return stage;
  }

  // Checks, after the last stage, that all pieces have been joined.
  void end() const {
    if (in_pieces_) refuse("pieces are not joined");
  }

 private:
  static constexpr Index kLargest = Index{1} << 48;
  static constexpr Index kPowers = 64;  // of √2: far more than any transform needs

  template <class T, class Read>
  PerAxis<T> per_axis(const Read& read) {
    PerAxis<T> values;
    for (int i = 0; i < ndim_; ++i) values.push_back(read());
    return values;
  }

  int axis(const char* what) { return static_cast<int>(number(what, 0, ndim_ - 1)); }

  std::vector<int> axes() {
    std::vector<int> axes;
    for (Index n = number("a number of axes", 1, ndim_); n > 0; --n) axes.push_back(axis("a changed axis"));
    return axes;
  }

  void check_pieces(const Stage& stage) {
    const bool opens = stage.kind == Stage::Kind::pieces, joins = stage.kind == Stage::Kind::joined;
    if ((opens || joins) && in_pieces_ == opens) refuse("pieces start within pieces, or end outside of them");
    if (opens) pieces_axis_ = stage.axis;
    in_pieces_ = (in_pieces_ || opens) && !joins;
    if (!in_pieces_) return;
    if (stage.kind == Stage::Kind::extend || stage.kind == Stage::Kind::crop) refuse("pieces have a halo");
    if (pieces_axis_ < 0) return;
    const bool transformed = std::count(stage.axes.begin(), stage.axes.end(), pieces_axis_) > 0;
    const bool same = stage.before.lengths[pieces_axis_] == stage.after.lengths[pieces_axis_] &&
                      stage.before.parts[pieces_axis_] == stage.after.parts[pieces_axis_];
    if (transformed || !same) refuse("pieces depend on each other");
  }

  [[noreturn]] static void refuse(const std::string& why) {
    throw Failure("the kernels do not understand the operator that Python describes (" + why +
                  "): they were built from other sources. Install or compile decompops again");
  }

  const std::int64_t *next_, *end_;
  Index mesh_axes_;
  int ndim_ = 0, pieces_axis_ = -1;
  bool in_pieces_ = false;
};

}  // namespace

Index Blocks::valid(int axis, Index part) const {
  return std::clamp<Index>(lengths[axis] - part * core(axis), 0, core(axis));
}

std::uint64_t hash_bytes(const void* data, std::size_t count, std::uint64_t seed) {
  // The hash FNV-1a is not cryptographic, but it is the same on every machine.
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
  hash = hash_bytes(details.data(), details.size(), hash);
  hash = hash_bytes(thread.data(), thread.size(), hash);
  hash = hash_bytes(site.data(), site.size(), hash);
  return hash_bytes(label.data(), label.size(), hash);
}

Plan decode(const std::int64_t* numbers, std::size_t count, std::size_t mesh_axes) {
  Reader reader(numbers, count, mesh_axes);
  reader.number("the stamp of its kernels", DECOMPOPS_STAMP, DECOMPOPS_STAMP);
  Plan plan;
  plan.wire = static_cast<Wire>(reader.number("the type that is sent", 0, static_cast<Index>(Wire::f16)));
  reader.dimensions();
  plan.numbers.assign(numbers, numbers + count);
  plan.source = plan.target = reader.blocks();
  while (!reader.empty()) {
    plan.stages.push_back(reader.stage(plan.target));
    plan.target = plan.stages.back().after;
  }
  reader.end();
  return plan;
}

}  // namespace decompops

// A plan for tests: a transpose whose result is known for each cell.

#pragma once

#include <numeric>
#include <vector>

#include "common/plan.h"

namespace decompops {

constexpr Index kCells = 4, kDepth = 3;

// Returns a plan for a transpose: the ranks shard the field along x before it, and along y after it. Blocks are cut
// into `pieces` pieces along z. If `pieces` is 0, they are not cut.
inline Plan transpose(int size, Index pieces) {
  const Index n = kCells * size;
  const PerAxis<std::array<Index, 2>> halo{{0, 0}, {0, 0}, {0, 0}};
  Blocks before{{n, n, kDepth}, {size, 1, 1}, {0, -1, -1}, {0, 1, 2}, halo},
      after{{n, n, kDepth}, {1, size, 1}, {-1, 0, -1}, {0, 1, 2}, halo};
  Plan plan;
  plan.source = before;
  plan.target = after;
  if (pieces > 0) plan.stages.push_back({Stage::Kind::pieces, before, before, false, false, 2, {}, {}, pieces});
  plan.stages.push_back({Stage::Kind::move, before, after, false, false, -1, {}, {}});
  if (pieces > 0) plan.stages.push_back({Stage::Kind::joined, after, after, false, false, -1, {}, {}});
  plan.scale = 1;
  plan.mesh = {size};
  plan.ranks.resize(size);
  std::iota(plan.ranks.begin(), plan.ranks.end(), 0);
  plan.label = "a transpose";
  return plan;
}

// The block of a rank before or after the transpose.
inline std::vector<std::int64_t> cells_of(int size, int rank, bool after) {
  const Index n = kCells * size, low = rank * kCells, high = low + kCells;
  std::vector<std::int64_t> cells;
  for (Index x = after ? 0 : low; x < (after ? n : high); ++x)
    for (Index y = after ? low : 0; y < (after ? high : n); ++y)
      for (Index z = 0; z < kDepth; ++z) cells.push_back(x * 1000000 + y * 1000 + z);
  return cells;
}

}  // namespace decompops

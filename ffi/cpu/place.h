// Which cells of a field a rank has, and which cells it sends to others.

#pragma once

#include <vector>

#include "cpu/pieces.h"

namespace decompops {

// The position of a rank in a mesh. Positions are row-major.
class Place {
 public:
  Place(const std::vector<Index>& mesh, int position);
  Index coordinate(int axis) const { return axis < 0 ? 0 : coordinates_[axis]; }
  // The position of the rank that has `coordinate` along `axis` of the mesh, and the coordinates of this rank along all
  // other axes.
  int moved(int axis, Index coordinate) const;

 private:
  std::vector<Index> strides_, coordinates_;
  int position_;
};

// The block of a rank, and its cells that are not padding.
Region block(const Blocks& layout, Index batch);
Region valid(const Blocks& layout, Index batch, const Place& place);

// A move that makes grid axis `gathered` whole, and shards grid axis `divided` over the same ranks.
struct Handover {
  const Stage& stage;
  int gathered, divided;

  // The box of cells that one rank sends to another. Both ranks compute this box. Along `divided`, it has the cells of
  // the receiver, along `gathered` the cells of the sender, and along all other axes the cells of `region`.
  Region leaving(const Region& region, Index sender, Index receiver) const;
  // The place in the receiver's block of the cells `leaving`, or of some of them.
  Region arrived(const Region& leaving, Index sender, Index receiver) const;
};

}  // namespace decompops

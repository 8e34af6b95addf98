// Which cells of a field a rank has, and which ones it hands to others.

#pragma once

#include <vector>

#include "cpu/pieces.h"

namespace decompops {

// Where a rank stands in a mesh; positions are row-major.
class Place {
 public:
  Place(const std::vector<Index>& mesh, int position);
  Index coordinate(int axis) const { return axis < 0 ? 0 : coordinates_[axis]; }
  // The position of the device at another coordinate along one axis of the mesh.
  int moved(int axis, Index coordinate) const;

 private:
  std::vector<Index> strides_, coordinates_;
  int position_;
};

// The block of a rank, and the cells of it that are not padding.
Region block(const Blocks& layout, Index batch);
Region valid(const Blocks& layout, Index batch, const Place& place);

// What a move does: grid axis `gathered` becomes whole, `divided` is divided among the same ranks.
struct Handover {
  const Stage& stage;
  int gathered, divided;

  // What a rank hands to another, the same on both: cells `divided` of the receiver, `gathered` of the sender, in blocks
  // that have `region` otherwise.
  Region leaving(const Region& region, Index sender, Index receiver) const;
  // Where in the receiver's block these cells, or some of them, lie.
  Region arrived(const Region& leaving, Index sender, Index receiver) const;
};

}  // namespace decompops

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
  // The position of the device at another coordinate along one axis of the mesh.
  int moved(int axis, Index coordinate) const;

 private:
  std::vector<Index> strides_, coordinates_;
  int position_;
};

// The block of a rank, and its cells that are not padding.
Region block(const Blocks& layout, Index batch);
Region valid(const Blocks& layout, Index batch, const Place& place);

// A move: grid axis `gathered` becomes whole, and `divided` is divided among the same ranks.
struct Handover {
  const Stage& stage;
  int gathered, divided;

  // The cells that a rank sends to another, computed alike on both: `divided` of the receiver, `gathered` of the
  // sender, in blocks that have `region` otherwise.
  Region leaving(const Region& region, Index sender, Index receiver) const;
  // The place of these cells, or of some of them, in the receiver's block.
  Region arrived(const Region& leaving, Index sender, Index receiver) const;
};

}  // namespace decompops

#include "cpu/place.h"

namespace decompops {

Place::Place(const std::vector<Index>& mesh, int position)
    : strides_(mesh.size()), coordinates_(mesh.size()), position_(position) {
  Index stride = 1;
  for (std::size_t i = mesh.size(); i-- > 0;) {
    strides_[i] = stride;
    coordinates_[i] = position / stride % mesh[i];
    stride *= mesh[i];
  }
}

int Place::moved(int axis, Index coordinate) const {
  return position_ + static_cast<int>((coordinate - coordinates_[axis]) * strides_[axis]);
}

Region block(const Blocks& layout, Index batch) {
  Region region{PerAxis<Index>::filled(layout.ndim() + 1), {batch}};
  for (int axis = 0; axis < layout.ndim(); ++axis) region.hi.push_back(layout.extent(axis));
  return region;
}

Region valid(const Blocks& layout, Index batch, const Place& place) {
  Region region = block(layout, batch);
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    region.hi[axis + 1] = layout.halo[axis][0] + layout.valid(axis, place.coordinate(layout.mesh_axis[axis]));
  }
  return region;
}

Region Handover::leaving(const Region& region, Index sender, Index receiver) const {
  const Index start = receiver * stage.after.core(divided);
  return region.with(gathered + 1, 0, stage.before.valid(gathered, sender))
      .with(divided + 1, start, start + stage.after.valid(divided, receiver));
}

Region Handover::arrived(const Region& leaving, Index sender, Index receiver) const {
  return leaving.shifted(gathered + 1, sender * stage.before.core(gathered))
      .shifted(divided + 1, -receiver * stage.after.core(divided));
}

}  // namespace decompops

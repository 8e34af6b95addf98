#include "cpu/pieces.h"

#include <algorithm>

namespace decompops {
namespace {

// Copies number by number. A copy in vectors would wait until numbers that were just written have reached the cache.
Region copied(const Region& region) {
  Region copy;
  for (int axis = 0; axis < region.axes(); ++axis) {
    copy.lo.push_back(region.lo[axis]);
    copy.hi.push_back(region.hi[axis]);
  }
  return copy;
}

}  // namespace

PerAxis<Index> Region::counts() const {
  PerAxis<Index> counts;
  for (int axis = 0; axis < axes(); ++axis) counts.push_back(count(axis));
  return counts;
}

Index Region::volume() const {
  Index volume = 1;
  for (int axis = 0; axis < axes(); ++axis) volume *= std::max<Index>(count(axis), 0);
  return volume;
}

Region Region::with(int axis, Index low, Index high) const {
  Region other = copied(*this);
  other.lo[axis] = low;
  other.hi[axis] = high;
  return other;
}

Region Region::shifted(int axis, Index by) const { return with(axis, lo[axis] + by, hi[axis] + by); }

Region intersection(const Region& a, const Region& b) {
  Region common = copied(a);
  for (int axis = 0; axis < a.axes(); ++axis) {
    common.lo[axis] = std::max(a.lo[axis], b.lo[axis]);
    common.hi[axis] = std::max(common.lo[axis], std::min(a.hi[axis], b.hi[axis]));
  }
  return common;
}

std::vector<Region> difference(const Region& whole, const std::vector<Region>& parts) {
  std::vector<Region> rest;
  if (!whole.empty()) rest.push_back(whole);
  for (const Region& part : parts) {
    std::vector<Region> smaller;
    for (Region region : rest) {
      Region common = intersection(region, part);
      if (common.empty()) {
        smaller.push_back(region);
        continue;
      }
      // Cut off, axis by axis, the cells before and after the common box.
      for (int axis = 0; axis < region.axes(); ++axis) {
        if (region.lo[axis] < common.lo[axis]) smaller.push_back(region.with(axis, region.lo[axis], common.lo[axis]));
        if (common.hi[axis] < region.hi[axis]) smaller.push_back(region.with(axis, common.hi[axis], region.hi[axis]));
        region = region.with(axis, common.lo[axis], common.hi[axis]);
      }
    }
    rest = std::move(smaller);
  }
  return rest;
}

PerAxis<int> natural(int ndim) {
  PerAxis<int> order;
  for (int axis = 0; axis < ndim; ++axis) order.push_back(axis);
  return order;
}

Piece dense(Buffer buffer, Index offset, const Region& region, const PerAxis<int>& order) {
  Piece piece{buffer, offset, region.lo, region};
  Index stride = 1;
  for (int position = order.size() - 1; position >= 0; --position) {
    piece.stride[order[position] + 1] = stride;
    stride *= region.count(order[position] + 1);
  }
  piece.stride[0] = stride;
  return piece;
}

Piece dense(Buffer buffer, Index offset, const Region& region) {
  return dense(buffer, offset, region, natural(region.axes() - 1));
}

Piece flat(Buffer buffer, Index offset, Index cells) { return {buffer, offset, {cells, 1}, {{0, 0}, {1, cells}}}; }

Piece spaced(Buffer buffer, Index offset, const Region& region, Index element) {
  constexpr Index kSets = 4096;  // addresses that are this many bytes apart share a set of the first-level cache
  Piece piece{buffer, offset, region.lo, region};
  Index stride = 1;
  for (int axis = region.axes() - 1; axis >= 0; --axis) {
    if (axis > 0 && stride > 1 && stride * element % kSets == 0) stride += kCacheLine / element;
    piece.stride[axis] = stride;
    stride *= region.count(axis);
  }
  return piece;
}

Index span(const Piece& piece, Index element) {
  return piece.stride[0] * piece.region.count(0) * stored_bytes(piece, element);
}

Piece placed(const Piece& piece, const Region& region, Index element) {
  Piece part = piece;
  part.region = region;
  for (int axis = 0; axis < region.axes(); ++axis) {
    part.offset += stored_bytes(piece, element) * piece.stride[axis] * (part.region.lo[axis] - piece.region.lo[axis]);
  }
  part.narrow.exponents += static_cast<Index>(sizeof(Exponent)) * (part.region.lo[0] - piece.region.lo[0]);
  return part;
}

Piece clipped(const Piece& piece, const Region& region, Index element) {
  return placed(piece, intersection(piece.region, region), element);
}

Field clipped(const Field& field, const Region& region, Index element) {
  Field part{field.region, {}};
  for (const Piece& piece : field.pieces) {
    Piece rest = clipped(piece, region, element);
    if (!rest.region.empty()) part.pieces.push_back(rest);
  }
  return part;
}

namespace {

// Whether `other` continues `piece` along an axis, in the grid and in memory.
bool continues(const Piece& piece, const Piece& other, Index element) {
  if (piece.buffer != other.buffer || piece.owner != other.owner || !(piece.stride == other.stride)) return false;
  if (piece.narrow.wire != Wire::none || other.narrow.wire != Wire::none) return false;
  int differing = 0;
  for (int axis = 0; axis < piece.region.axes(); ++axis) {
    const Index low = other.region.lo[axis], high = other.region.hi[axis];
    if (low == piece.region.lo[axis] && high == piece.region.hi[axis]) continue;
    if (low != piece.region.hi[axis]) return false;
    ++differing;
  }
  return differing == 1 && placed(piece, other.region, element).offset == other.offset;
}

}  // namespace

std::vector<Piece> merged(const std::vector<Piece>& pieces, Index element) {
  std::vector<Piece> fewer;
  for (const Piece& piece : pieces) {
    if (fewer.empty() || !continues(fewer.back(), piece, element)) {
      fewer.push_back(piece);
    } else {
      fewer.back().region.hi = piece.region.hi;
    }
  }
  return fewer;
}

Field shifted(Field field, int axis, Index by) {
  field.region = field.region.shifted(axis, by);
  for (Piece& piece : field.pieces) piece.region = piece.region.shifted(axis, by);
  return field;
}

}  // namespace decompops

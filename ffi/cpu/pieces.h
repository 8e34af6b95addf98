// Cells and their places in memory. Apart from Fourier transforms, kernels only move cells from some pieces of memory
// to others.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/plan.h"

namespace decompops {

constexpr Index kCacheLine = 64;  // bytes
constexpr Index whole_cache_lines(Index bytes) { return ceil_div(bytes, kCacheLine) * kCacheLine; }

// A box of cells. Axis 0 combines all batch axes. Grid axis i is axis i + 1 of a region.
struct Region {
  PerAxis<Index> lo, hi;

  int axes() const { return lo.size(); }
  Index count(int axis) const { return hi[axis] - lo[axis]; }
  PerAxis<Index> counts() const;
  Index volume() const;
  bool empty() const { return volume() == 0; }
  Region with(int axis, Index low, Index high) const;
  Region shifted(int axis, Index by) const;
};

Region intersection(const Region& a, const Region& b);
// The parts of `whole` that none of `parts` covers.
std::vector<Region> difference(const Region& whole, const std::vector<Region>& parts);

// Cuts `region` into boxes of at most `cells[axis]` cells along each axis, and calls `body(part)` for each box.
template <class Body>
void for_boxes(const Region& region, const PerAxis<Index>& cells, const Body& body) {
  if (region.empty()) return;
  Region part{PerAxis<Index>::filled(region.axes()), PerAxis<Index>::filled(region.axes())};
  auto begin_at = [&](int axis, Index low) {
    part.lo[axis] = low;
    part.hi[axis] = std::min(low + cells[axis], region.hi[axis]);
  };
  for (int axis = 0; axis < region.axes(); ++axis) begin_at(axis, region.lo[axis]);
  for (int axis = 0; axis >= 0;) {
    body(static_cast<const Region&>(part));
    for (axis = region.axes() - 1; axis >= 0; --axis) {
      if (part.hi[axis] < region.hi[axis]) {
        begin_at(axis, part.hi[axis]);
        break;
      }
      begin_at(axis, region.lo[axis]);
    }
  }
}

// The buffers of cells at run time. The buffers from `kScratch` to `kReceive2` belong to a whole block. If a block is
// cut into pieces that are exchanged separately (overlap.cc), two of these pieces are processed at a time. Each of the
// two has its own copies of these buffers, whose numbers are larger by `kOwn` or by twice `kOwn`.
enum Buffer : int {
  kInput,
  kResult,
  kPlane,
  kScratch,
  kScratch2,
  kSend,
  kReceive,
  kReceive2,
  kOwn = kReceive2 + 1 - kScratch,
  kBuffers = kScratch + 3 * kOwn
};

// How a piece stores numbers that are sent in a narrower type than the field's. In float16, each field of the batch is
// multiplied by 2 to the power of an exponent, because the largest number is 65504.
struct Narrow {
  Wire wire = Wire::none;
  Index ratio = 1;      // the bytes of a number of the field, divided by the bytes that are stored
  Index exponents = 0;  // float16: the place of the exponents, in bytes after the start of the buffer
};
using Exponent = std::int32_t;

// A box of cells somewhere in a buffer. The cell at `region.lo` lies `offset` bytes after the start of the buffer.
struct Piece {
  Buffer buffer;
  Index offset;
  PerAxis<Index> stride;  // in elements
  Region region;
  int owner = -1;  // the index in `Memory::others` of the rank that owns the buffer; -1: this rank
  Narrow narrow = {};
};

// The addresses of the buffers of a rank.
using Addresses = std::array<std::byte*, kBuffers>;

// The buffers of a rank, and the buffers of the other ranks to which it writes. `Piece::owner` is an index in `others`.
struct Memory {
  Addresses own;
  const Addresses* others = nullptr;

  std::byte* operator[](const Piece& piece) const { return start_of(piece) + piece.offset; }
  // Where the exponents of a piece in float16 are stored: one number for each field of the batch.
  Exponent* exponents_of(const Piece& piece) const {
    return reinterpret_cast<Exponent*>(start_of(piece) + piece.narrow.exponents);
  }

 private:
  std::byte* start_of(const Piece& piece) const { return (piece.owner < 0 ? own : others[piece.owner])[piece.buffer]; }
};

// A block that consists of pieces. Cells of `region` that no piece holds are zero.
struct Field {
  Region region;
  std::vector<Piece> pieces;
};

// The grid axes in the order of their numbers.
PerAxis<int> natural(int ndim);
// A box of cells without gaps, stored in `order` of grid axes, the last one fastest.
Piece dense(Buffer buffer, Index offset, const Region& region, const PerAxis<int>& order);
Piece dense(Buffer buffer, Index offset, const Region& region);
// `cells` cells, one after the other.
Piece flat(Buffer buffer, Index offset, Index cells);
// `spaced`: a box stored row by row, with gaps if neighbours along an axis would otherwise fall into one cache set.
// `span`: the number of bytes from the first cell of such a box to the end of its last gap.
Piece spaced(Buffer buffer, Index offset, const Region& region, Index element);
Index span(const Piece& piece, Index element);
// The bytes of a cell in a piece of a field whose cells have `element` bytes.
inline Index stored_bytes(const Piece& piece, Index element) { return element / piece.narrow.ratio; }
// `placed`: the piece that has the cells of `region`, at their places in the memory of `piece`. `clipped`: the part of
// a piece or field that lies inside `region`. A clipped field keeps its own region, so its other cells become zero.
Piece placed(const Piece& piece, const Region& region, Index element);
Piece clipped(const Piece& piece, const Region& region, Index element);
Field clipped(const Field& field, const Region& region, Index element);
// The same cells in fewer pieces: neighbours that are arranged in memory like one box become one piece.
std::vector<Piece> merged(const std::vector<Piece>& pieces, Index element);
// The cells of `field`, with indices along `axis` that are larger by `by`.
Field shifted(Field field, int axis, Index by);

}  // namespace decompops

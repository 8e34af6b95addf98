// One-dimensional transforms of all lines of a block, tile by tile in cache.

#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "cpu/fft.h"
#include "cpu/pieces.h"

namespace decompops {

// A transform of lines of `length` real-space cells along `axis` of a box of cells.
struct Lines {
  int axis;
  Transform transform;
  Index length;
  double scale;
  Index dropped = 0;  // cells at the end of each result that are not stored

  Index cells_in() const { return transform.kind == Transform::Kind::c2r ? length / 2 + 1 : length; }
  Index cells_out() const { return transform.kind == Transform::Kind::r2c ? length / 2 + 1 : length; }
  Index stored() const { return cells_out() - dropped; }
};

// A pass over the lines of `from`: it reads them, transforms them and writes them to `to`. `Real` is the type of
// numbers: float or double. All objects that are passed by reference must outlive the pass.
template <class Real>
class LinePass {
 public:
  // `between`, if given, is called before each tile.
  LinePass(const Lines& lines, const Field& from, const Field& to, bool stream, Planning planning, const Memory& memory,
           const std::function<void()>& between);
  ~LinePass();

  // Transforms the lines that lie in `region` (its extent along the lines' axis does not matter). The regions of all
  // calls have the same numbers of cells.
  void run(const Region& region);

 private:
  struct Parts;  // what the pass needs for each region of one size

  void load(const Region& cells) const;
  void store(const Region& cells) const;
  template <class Body>
  void for_common(const Field& field, const Region& cells, const Spacing& spacing, std::byte* start, Index element,
                  const Body& body) const;

  const Lines& lines_;
  const Field &from_, &to_;
  bool stream_;
  Planning planning_;
  const Memory& memory_;
  const std::function<void()> between_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace decompops

// The loops of a strided copy.

#pragma once

#include <array>
#include <utility>

#include "cpu/copy.h"

namespace decompops {

struct Axis {
  Index count, to, from;
};
using Axes = std::array<Axis, kMaxAxes + 1>;

// The axes of a copy, from the outermost to the innermost axis of the result. Axes of one cell are left out. Axes that
// are contiguous in the source and in the result are merged. Returns the number of axes.
inline int simplify(Axes& axes, const Strides& to, const Strides& from, const Strides& counts) {
  auto outside = [](const Axis& a, const Axis& b) { return a.to != b.to ? a.to > b.to : a.from > b.from; };
  int used = 0;
  for (int i = 0; i < counts.size(); ++i) {
    if (counts[i] == 1) continue;
    axes[used] = {counts[i], to[i], from[i]};
    for (int place = used++; place > 0 && outside(axes[place], axes[place - 1]); --place) {
      std::swap(axes[place], axes[place - 1]);
    }
  }
  int last = 0;
  for (int i = 1; i < used; ++i) {
    Axis &outer = axes[last], &inner = axes[i];
    if (outer.to == inner.to * inner.count && outer.from == inner.from * inner.count) {
      outer = {outer.count * inner.count, inner.to, inner.from};
    } else {
      axes[++last] = inner;
    }
  }
  return used == 0 ? 0 : last + 1;
}

// Calls `body(to offset, from offset)` for each cell of the first `count` axes.
template <class Body>
void for_each(const Axis* axes, int count, Index to, Index from, const Body& body) {
  if (count == 0) return body(to, from);
  for (Index i = 0; i < axes->count; ++i) {
    for_each(axes + 1, count - 1, to + i * axes->to, from + i * axes->from, body);
  }
}

}  // namespace decompops

// Copies between the type of a field and the narrower type in which messages store its numbers.

#pragma once

#include "cpu/copy.h"

namespace decompops {

// A box of cells in memory, and how it stores numbers. Axis 0 of the box is the batch.
struct Cells {
  std::byte* start;
  Strides stride;
  Narrow narrow = {};
  const Exponent* exponents = nullptr;  // float16: one for each field of the batch
};

Cells cells_of(const Piece& piece, const Memory& memory);

// Copies `counts` cells, and converts their numbers if the two boxes store different types. `element` is the bytes of a
// cell of the field.
void copy(const Cells& to, const Cells& from, const Strides& counts, Index element, Access access = Access::plain,
          const Scale& scale = {});

// The 2-norm of the numbers of one field of a piece. `real_bytes` is 4 or 8: the bytes of a number of the field.
double norm_of(const Piece& piece, const Memory& memory, Index element, Index real_bytes);

// The exponent of a field whose numbers are at most `bound`: multiplied by 2 to this power, they are in the range of
// float16.
Exponent exponent_for(double bound, Index real_bytes);

}  // namespace decompops

// Rows of arrays that move between devices. The arrays of a device have the same number of rows (slots).

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/plan.h"

namespace decompops {

using Slot = std::int32_t;

// What Python tells each device of a group about an exchange of rows.
struct RowCounts {
  const Slot* leaving;  // this device's slots whose rows leave, by their destination
  const Slot* sent;     // how many rows device i sends to device d, for all i and d
  Index count;          // how many of the first slots have a row before the exchange
  Index slots;
  int devices, me;
  bool back;  // whether all rows move back to where they came from: the transposed exchange
};

// The rows of one device that move. Slot number i of `leaving` is read, and slot number i of `entering` is written. Each
// list has the rows of one device after the other, and last those that only change their slot on this device.
struct Rows {
  std::vector<Slot> leaving, entering;
  std::vector<Index> leaving_to, entering_from;  // the first row of each device, and of those that change their slot
  Index kept;                                    // rows of the first slots stay unless they are overwritten

  Index sends(int device) const { return leaving_to[device + 1] - leaving_to[device]; }
  Index receives(int device) const { return entering_from[device + 1] - entering_from[device]; }
  // How many rows only change their slot. They are the last of both lists.
  Index stays() const { return static_cast<Index>(leaving.size()) - leaving_to.back(); }
};

// Finds the rows that move. Rows that come fill the slots of those that leave, and then the slots behind the last row. If
// more leave than come, the last rows fill the slots that are still free. Throws if the numbers contradict each other.
Rows rows_of(const RowCounts& counts);

// The memory of one array, before and after an exchange.
struct RowArray {
  const std::byte* before;
  std::byte* after;
  Index bytes;  // of a row
};

// The arrays and the moving rows of one device.
struct RowMoves {
  Rows rows;
  std::vector<RowArray> arrays;
  Index slots;

  Index bytes_of_row() const {
    Index sum = 0;
    for (const RowArray& array : arrays) sum += array.bytes;
    return sum;
  }
};

// Copies the rows `first` to `last` - 1 if they are among the first `kept` rows, and sets the others to zero.
void keep_rows(const RowArray& array, Index kept, Index first, Index last);

// Copies row `from[i]` of `source` to row `to[i]` of `target`, for i from 0 to `count` - 1. If one of the two lists is null, its numbers are 0, 1, 2 and
// so on.
void copy_rows(const std::byte* source, const Slot* from, std::byte* target, const Slot* to, Index count, Index bytes);

}  // namespace decompops

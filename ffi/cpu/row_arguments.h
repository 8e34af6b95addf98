// The arguments that the handlers of exchanges of rows get from XLA.

#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cpu/arguments.h"
#include "cpu/rows.h"

namespace decompops {

using Slots = xla::ffi::Buffer<xla::ffi::S32>;

// Throws if the sizes of the arrays do not fit together. `me` is the place of this device among `devices`.
inline RowMoves row_moves(const Slots& leaving, const Slots& sent, const Slots& count,
                          const xla::ffi::RemainingArgs& before, const xla::ffi::RemainingRets& after, bool back,
                          int devices, int me) {
  const Index slots = static_cast<Index>(leaving.element_count());
  if (static_cast<Index>(sent.element_count()) != Index{devices} * devices || count.element_count() != 1 ||
      before.size() != after.size()) {
    throw Failure("an exchange of rows has arguments of wrong sizes");
  }
  RowMoves moves{
      rows_of({leaving.typed_data(), sent.typed_data(), *count.typed_data(), slots, devices, me, back}), {}, slots};
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto from = before.get<xla::ffi::AnyBuffer>(i);
    auto to = after.get<xla::ffi::AnyBuffer>(i);
    if (!from || !to) throw Failure("an exchange of rows gets no array");
    const auto shape = from->dimensions(), found = (*to)->dimensions();
    const Index element = bytes_of(from->element_type());
    const bool is_same = std::equal(shape.begin(), shape.end(), found.begin(), found.end());
    if (shape.size() < 1 || shape[0] != slots || !is_same || from->element_type() != (*to)->element_type()) {
      throw Failure("an array does not have one row for each slot");
    }
    if (element < 1) throw Failure("the kernels cannot move these numbers");
    Index row = element;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) row = product(row, shape[axis]);
    moves.arrays.push_back(
        {static_cast<const std::byte*>(from->untyped_data()), static_cast<std::byte*>((*to)->untyped_data()), row});
  }
  return moves;
}

}  // namespace decompops

// The arguments that the handlers of all backends get from XLA.

#pragma once

#include <string>
#include <string_view>

#include "cpu/copy.h"
#include "xla/ffi/api/ffi.h"

namespace decompops {

inline Number number_of(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::F16: return Number::f16;
    case xla::ffi::BF16: return Number::bf16;
    case xla::ffi::F32: return Number::f32;
    case xla::ffi::F64: return Number::f64;
    case xla::ffi::C64: return Number::c64;
    case xla::ffi::C128: return Number::c128;
    case xla::ffi::S8:
    case xla::ffi::U8: return Number::i8;
    case xla::ffi::S16:
    case xla::ffi::U16: return Number::i16;
    case xla::ffi::S32:
    case xla::ffi::U32: return Number::i32;
    case xla::ffi::S64:
    case xla::ffi::U64: return Number::i64;
    default: return Number::other;  // can be moved, but not added
  }
}

inline Index element_of(const xla::ffi::AnyBuffer& buffer) {
  return buffer.element_count() == 0 ? 0 : static_cast<Index>(buffer.size_bytes() / buffer.element_count());
}

// The number of grids in a block: the product of its axes before the last `ndim` axes.
inline Index batch_of(const xla::ffi::AnyBuffer& block, int ndim) {
  Index batch = 1;
  const auto shape = block.dimensions();
  for (std::size_t i = 0; i + ndim < shape.size(); ++i) batch *= shape[i];
  return batch;
}

// The plan of a call. `ranks` has one rank for each place in the mesh.
inline Plan plan_of(xla::ffi::Span<const std::int64_t> numbers, xla::ffi::Span<const std::int64_t> mesh,
                    xla::ffi::Span<const std::int64_t> ranks, double scale, std::string_view label) {
  Plan plan = decode(numbers.begin(), numbers.size(), mesh.size());
  plan.mesh.assign(mesh.begin(), mesh.end());
  plan.ranks.assign(ranks.begin(), ranks.end());
  plan.scale = scale;
  plan.label = std::string(label);
  return plan;
}

}  // namespace decompops

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

// The bytes of a number; 0 for numbers of which several share a byte, and for unknown types. The size that XLA's header
// gives for these types is not their size in memory.
inline Index bytes_of(xla::ffi::DataType type) {
  using xla::ffi::DataType;
  switch (type) {
    case DataType::PRED:
    case DataType::S8:
    case DataType::U8:
    case DataType::F8E3M4:
    case DataType::F8E4M3:
    case DataType::F8E4M3FN:
    case DataType::F8E4M3FNUZ:
    case DataType::F8E4M3B11FNUZ:
    case DataType::F8E5M2:
    case DataType::F8E5M2FNUZ:
    case DataType::F8E8M0FNU: return 1;
    case DataType::S16:
    case DataType::U16:
    case DataType::F16:
    case DataType::BF16: return 2;
    case DataType::S32:
    case DataType::U32:
    case DataType::F32: return 4;
    case DataType::S64:
    case DataType::U64:
    case DataType::F64:
    case DataType::C64: return 8;
    case DataType::C128: return 16;
    default: return 0;
  }
}

// What a call computes with.
struct Arguments {
  Index batch;    // the number of grids in a block
  Index element;  // the bytes of a cell of the input
  Number number;
};

inline Index product(Index a, Index b) {
  Index result;
  if (__builtin_mul_overflow(a, b, &result)) throw Failure("an array is too large");
  return result;
}

// The number of grids in a block: the product of its axes before the last `ndim` axes.
inline Index batch_of(const xla::ffi::AnyBuffer& block, int ndim) {
  Index batch = 1;
  const auto shape = block.dimensions();
  for (std::size_t i = 0; i + ndim < shape.size(); ++i) batch = product(batch, shape[i]);
  return batch;
}

// Throws unless `array` holds `batch` blocks of cells of `element` bytes.
inline void check_size(const xla::ffi::AnyBuffer& array, const Blocks& layout, Index batch, Index element) {
  Index cells = batch;
  for (int axis = 0; axis < layout.ndim(); ++axis) cells = product(cells, layout.extent(axis));
  product(cells, element);
  if (element < 1 || bytes_of(array.element_type()) != element) throw Failure("the kernels cannot move these numbers");
  if (static_cast<Index>(array.element_count()) != cells) {
    throw Failure("an array of " + std::to_string(array.element_count()) + " cells is not a block of " +
                  std::to_string(cells));
  }
}

// Reads the sizes of a call's arrays. Throws if they do not fit the plan: otherwise, the kernels would read or write
// beyond the ends of arrays.
inline Arguments arguments_of(const Plan& plan, const xla::ffi::AnyBuffer& input, const xla::ffi::AnyBuffer& result) {
  const Index batch = batch_of(input, plan.source.ndim());
  const Number number = number_of(input.element_type());
  if (batch == 0) return {batch, 0, number};
  const Index element = bytes_of(input.element_type());
  check_size(input, plan.source, batch, element);
  const bool is_single = number == Number::f32 || number == Number::c64;
  const bool is_double = number == Number::f64 || number == Number::c128;
  if (plan.wire != Wire::none && !is_double && !(is_single && plan.wire != Wire::f32)) {
    throw Failure("these numbers cannot be sent in a narrower type");
  }
  Index after = element;
  for (const Stage& stage : plan.stages) {
    if (!stage.transforms()) continue;
    if (!is_double && !is_single) throw Failure("these numbers have no transform");
    if (stage.kind == Stage::Kind::cosine) continue;  // It takes real and complex cells.
    const Index real = is_double ? 8 : 4;
    if (after != real * stage.transform.reals_in()) {
      throw Failure("a transform gets cells of " + std::to_string(after) + " bytes");
    }
    after = real * stage.transform.reals_out();
  }
  check_size(result, plan.target, batch, after);
  return {batch, element, number};
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

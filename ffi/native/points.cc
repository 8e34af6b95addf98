// The handlers that XLA calls to deposit values at points of one block, to read a block at points, and to put points in
// order. They need no other device.

#include "cpu/points.h"

#include <algorithm>
#include <complex>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/arguments.h"
#include "cpu/order.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace decompops::native {
namespace {

using Numbers = ffi::Span<const std::int64_t>;

// What the handlers are told in attributes. `coefficients` holds, for each axis, each power of the fraction from the
// highest to the constant, and each touched cell, one number.
Cloud cloud_of(Numbers shape, Numbers wraps, std::int64_t width, ffi::Span<const double> coefficients) {
  const std::size_t ndim = shape.size();
  if (ndim < 1 || ndim > Cloud::kMostAxes || wraps.size() != ndim) throw Failure("a block must have 1 to 3 axes");
  const std::size_t each = coefficients.size() / ndim;
  if (width < 1 || width > Cloud::kMostWidth || each == 0 || coefficients.size() % ndim != 0 || each % width != 0) {
    throw Failure("a window of " + std::to_string(width) + " cells does not have " +
                  std::to_string(coefficients.size()) + " coefficients on " + std::to_string(ndim) + " axes");
  }
  Cloud cloud;
  cloud.first_axis = Cloud::kMostAxes - static_cast<int>(ndim);
  for (std::size_t i = 0; i < ndim; ++i) {
    Cloud::Axis& axis = cloud.axes[cloud.first_axis + i];
    axis.length = shape[i];
    axis.wraps = wraps[i] != 0;
    axis.width = static_cast<int>(width);
    axis.coefficients.assign(coefficients.begin() + i * each, coefficients.begin() + (i + 1) * each);
  }
  return cloud;
}

// The arrays of one call. The numbers say which of them the result is.
struct Arrays {
  enum Result { along, values, block };

  const ffi::AnyBuffer& positions;
  std::vector<ffi::AnyBuffer> operands;
  const ffi::AnyBuffer& result;
  int gives;

  // The array of this kind, or null.
  void* get(int kind) const {
    if (kind == gives) return result.untyped_data();
    const bool has_along = operands.size() == 2;
    if (kind == along && !has_along) return nullptr;
    return operands[has_along ? kind - (kind > gives) : 0].untyped_data();
  }
};

// Throws an error if the length of `array` is not `numbers`.
void check_count(const ffi::AnyBuffer& array, Index numbers, const char* what) {
  if (static_cast<Index>(array.element_count()) == numbers) return;
  throw Failure(std::string(what) + " must have " + std::to_string(numbers) + " numbers; got " +
                std::to_string(array.element_count()));
}

template <class Real, class Value>
void compute(const Cloud& cloud, const Points<Real>& points, const Arrays& arrays, Index batch, int threads) {
  using Share = typename RealOf<Value>::type;
  auto* along = static_cast<Share*>(arrays.get(Arrays::along));
  auto* values = static_cast<Value*>(arrays.get(Arrays::values));
  auto* block = static_cast<Value*>(arrays.get(Arrays::block));
  switch (arrays.gives) {
    case Arrays::block: return deposit<Real, Value>(cloud, points, values, batch, block, threads, along);
    case Arrays::values: return read<Real, Value>(cloud, points, block, batch, values, threads, along);
    default:
      if constexpr (std::is_same_v<Share, Value>) {
        return find_slopes<Real, Value>(cloud, points, values, block, batch, along, threads);
      }
      throw Failure("slopes are those of real numbers");
  }
}

template <class Real>
void of_values(const Cloud& cloud, const Arrays& arrays, const ffi::AnyBuffer& scale, const ffi::AnyBuffer& frame,
               Index live, Index batch, int threads) {
  const Index count = arrays.positions.dimensions()[0];
  Points<Real> points{
      static_cast<const Real*>(arrays.positions.untyped_data()), count, std::clamp<Index>(live, 0, count), {}};
  const auto* scales = static_cast<const Real*>(scale.untyped_data());
  const auto* numbers = static_cast<const Real*>(frame.untyped_data());
  for (int axis = 0; axis < cloud.ndim(); ++axis, numbers += Frame<Real>::kNumbers) {
    points.frames[cloud.first_axis + axis] = {scales[axis], numbers[0], numbers[1], numbers[2],
                                              numbers[3],   numbers[4], numbers[5], numbers[6]};
  }
  switch (arrays.operands.back().element_type()) {
    case ffi::F32: return compute<Real, float>(cloud, points, arrays, batch, threads);
    case ffi::F64: return compute<Real, double>(cloud, points, arrays, batch, threads);
    case ffi::C64: return compute<Real, std::complex<float>>(cloud, points, arrays, batch, threads);
    case ffi::C128: return compute<Real, std::complex<double>>(cloud, points, arrays, batch, threads);
    default: throw Failure("the kernels for points take numbers of 4 or 8 bytes, real or complex");
  }
}

ffi::Error run(ffi::AnyBuffer positions, ffi::AnyBuffer scale, ffi::AnyBuffer frame, ffi::Buffer<ffi::S32> live,
               ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> result, Numbers shape, Numbers wraps,
               std::int64_t width, ffi::Span<const double> coefficients, std::int64_t gives, std::int64_t batch,
               std::int64_t threads) {
  try {
    const Cloud cloud = cloud_of(shape, wraps, width, coefficients);
    const auto dimensions = positions.dimensions();
    if (dimensions.size() != 2 || dimensions[1] != cloud.ndim()) {
      throw Failure("points must have one coordinate for each of " + std::to_string(cloud.ndim()) + " axes");
    }
    const auto real = positions.element_type();
    if (real != scale.element_type() || real != frame.element_type() || (real != ffi::F32 && real != ffi::F64)) {
      throw Failure("coordinates of points must be numbers of 4 or 8 bytes");
    }
    check_count(scale, cloud.ndim(), "the scale");
    check_count(frame, cloud.ndim() * (real == ffi::F32 ? Frame<float>::kNumbers : Frame<double>::kNumbers), "a frame");
    if (live.element_count() != 1) throw Failure("the number of points must be one number");
    Arrays arrays{positions, {}, *result, static_cast<int>(gives)};
    for (std::size_t i = 0; i < operands.size(); ++i)
      arrays.operands.push_back(operands.get<ffi::AnyBuffer>(i).value());
    if (arrays.operands.empty() || arrays.operands.size() > 2) throw Failure("there must be one or two operands");
    for (const auto& operand : arrays.operands) {
      if (operand.element_type() != result->element_type()) throw Failure("an operand and the result differ in type");
    }
    const Index count = dimensions[0];
    const Index sizes[] = {count * cloud.ndim(), product(batch, count), product(batch, cloud.cells())};
    const bool has_along = arrays.operands.size() == 2;
    if (gives < (has_along ? 0 : 1) || gives > 2) throw Failure("there is no such result");
    for (int kind = has_along ? 0 : 1, i = 0; kind < 3; ++kind) {
      check_count(kind == gives ? *result : arrays.operands[i++], sizes[kind], "an array");
    }
    const auto compute_all = real == ffi::F32 ? of_values<float> : of_values<double>;
    compute_all(cloud, arrays, scale, frame, live.typed_data()[0], batch, static_cast<int>(threads));
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("decompops: ") + error.what());
  }
}

ffi::Error order(ffi::Buffer<ffi::S32> keys, ffi::ResultBuffer<ffi::S32> places, ffi::ResultBuffer<ffi::S32> found,
                 std::int64_t threads) {
  try {
    const Index count = static_cast<Index>(keys.element_count());
    if (static_cast<Index>(places->element_count()) != count) throw Failure("each key must have a place");
    put_in_order(keys.typed_data(), count, static_cast<int>(found->element_count()), places->typed_data(),
                 found->typed_data(), static_cast<int>(threads));
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("decompops: ") + error.what());
  }
}

XLA_FFI_DEFINE_HANDLER(kPoints, run,
                       ffi::Ffi::Bind()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Buffer<ffi::S32>>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<Numbers>("shape")
                           .Attr<Numbers>("wraps")
                           .Attr<std::int64_t>("width")
                           .Attr<ffi::Span<const double>>("coefficients")
                           .Attr<std::int64_t>("gives")
                           .Attr<std::int64_t>("batch")
                           .Attr<std::int64_t>("threads"));
XLA_FFI_DEFINE_HANDLER(kOrder, order,
                       ffi::Ffi::Bind()
                           .Arg<ffi::Buffer<ffi::S32>>()
                           .Ret<ffi::Buffer<ffi::S32>>()
                           .Ret<ffi::Buffer<ffi::S32>>()
                           .Attr<std::int64_t>("threads"));

}  // namespace
}  // namespace decompops::native

extern "C" __attribute__((visibility("default"))) void* decompops_points() {
  return reinterpret_cast<void*>(decompops::native::kPoints);
}

extern "C" __attribute__((visibility("default"))) void* decompops_order() {
  return reinterpret_cast<void*>(decompops::native::kOrder);
}

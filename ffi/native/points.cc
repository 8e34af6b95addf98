// The handlers that XLA calls to deposit values at points of one block, to read a block at points, and to put points in
// order. They need no other device.

#include "cpu/points.h"

#include <algorithm>
#include <complex>
#include <string>

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

template <class Real, class Value>
void compute(const Cloud& cloud, const ffi::AnyBuffer& points, const ffi::AnyBuffer& x, const ffi::AnyBuffer& result,
             Index count, bool deposits, int threads) {
  const Index each = deposits ? count : cloud.cells(), made = deposits ? cloud.cells() : count;
  const Index numbers = static_cast<Index>(x.element_count());
  const Index batch =
      each == 0 ? static_cast<Index>(result.element_count()) / std::max<Index>(made, 1) : numbers / each;
  if (batch * each != numbers || batch * made != static_cast<Index>(result.element_count())) {
    throw Failure("an array of " + std::to_string(numbers) + " numbers does not fit " + std::to_string(count) +
                  " points and a block of " + std::to_string(cloud.cells()) + " cells");
  }
  const auto* where = static_cast<const Real*>(points.untyped_data());
  const auto* from = static_cast<const Value*>(x.untyped_data());
  auto* to = static_cast<Value*>(result.untyped_data());
  (deposits ? deposit<Real, Value> : read<Real, Value>)(cloud, where, count, from, batch, to, threads);
}

template <class Real>
void of_values(const Cloud& cloud, const ffi::AnyBuffer& points, const ffi::AnyBuffer& x, const ffi::AnyBuffer& result,
               Index count, bool deposits, int threads) {
  switch (x.element_type()) {
    case ffi::F32: return compute<Real, float>(cloud, points, x, result, count, deposits, threads);
    case ffi::F64: return compute<Real, double>(cloud, points, x, result, count, deposits, threads);
    case ffi::C64: return compute<Real, std::complex<float>>(cloud, points, x, result, count, deposits, threads);
    case ffi::C128: return compute<Real, std::complex<double>>(cloud, points, x, result, count, deposits, threads);
    default: throw Failure("the kernels for points take numbers of 4 or 8 bytes, real or complex");
  }
}

ffi::Error run(ffi::AnyBuffer points, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> result, Numbers shape,
               Numbers wraps, std::int64_t width, ffi::Span<const double> coefficients, bool deposits,
               std::int64_t threads) {
  try {
    const Cloud cloud = cloud_of(shape, wraps, width, coefficients);
    const auto dimensions = points.dimensions();
    if (dimensions.size() != 2 || dimensions[1] != cloud.ndim() || x.element_type() != result->element_type()) {
      throw Failure("points must have one coordinate for each of " + std::to_string(cloud.ndim()) + " axes");
    }
    const auto compute_all = points.element_type() == ffi::F32 ? of_values<float> : of_values<double>;
    if (points.element_type() != ffi::F32 && points.element_type() != ffi::F64) {
      throw Failure("coordinates of points must be numbers of 4 or 8 bytes");
    }
    compute_all(cloud, points, x, *result, dimensions[0], deposits, static_cast<int>(threads));
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
                           .Ret<ffi::AnyBuffer>()
                           .Attr<Numbers>("shape")
                           .Attr<Numbers>("wraps")
                           .Attr<std::int64_t>("width")
                           .Attr<ffi::Span<const double>>("coefficients")
                           .Attr<bool>("deposits")
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

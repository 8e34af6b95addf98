#include "cudecomp/kernels.h"

#include "cudecomp/grids.h"

namespace ffi = xla::ffi;

namespace decompops::cudecomp {
namespace {

cudecompDataType_t type_of(ffi::DataType type) {
  switch (type) {
    case ffi::F32: return CUDECOMP_FLOAT;
    case ffi::F64: return CUDECOMP_DOUBLE;
    case ffi::C64: return CUDECOMP_FLOAT_COMPLEX;
    case ffi::C128: return CUDECOMP_DOUBLE_COMPLEX;
    default: throw Failure("cuDecomp does not have this dtype");
  }
}

std::size_t batch_of(const Buffer& buffer) {
  const auto shape = buffer.dimensions();
  std::size_t batch = 1;
  for (std::size_t i = 0; i + 3 < shape.size(); ++i) batch *= shape[i];
  return batch;
}

// Calls `body` for each batch element of `input` and of `result`, which may be the same buffer.
template <class Body>
ffi::Error for_each(std::string_view label, const Buffer& input, Result& result, const Body& body) {
  try {
    const std::size_t batch = batch_of(input);
    // cuDecomp's functions take mutable pointers. But if the result is another buffer, they do not change the input.
    auto from = static_cast<std::byte*>(input.untyped_data());
    auto to = static_cast<std::byte*>(result->untyped_data());
    for (std::size_t i = 0; i < batch; ++i) {
      body(from + i * (input.size_bytes() / batch), to + i * (result->size_bytes() / batch));
    }
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error::Internal("decompops: " + std::string(label) + ": " + error.what());
  }
}

}  // namespace

ffi::Error transpose(cudaStream_t stream, Buffer input, Result result, Result workspace, std::int64_t index,
                     bool forward, std::string_view label) {
  return for_each(label, input, result, [&](std::byte* from, std::byte* to) {
    const Grid grid = find(index);
    void* work = grid.workspace ? grid.workspace : workspace->untyped_data();
    const auto run = grid.along == 0 ? (forward ? cudecompTransposeXToY : cudecompTransposeYToX)
                                     : (forward ? cudecompTransposeYToZ : cudecompTransposeZToY);
    check(run(grid.handle, grid.descriptor, from, to, work, type_of(input.element_type()), nullptr, nullptr, nullptr,
              nullptr, stream),
          "cudecompTranspose");
  });
}

ffi::Error halo(cudaStream_t stream, Buffer input, Result result, Result workspace, std::int64_t index,
                std::int64_t width, bool periodic, std::string_view label) {
  return for_each(label, input, result, [&](std::byte* from, std::byte* to) {
    if (from != to) throw Failure("XLA has not aliased the result to the input");
    const Grid grid = find(index);
    void* work = grid.workspace ? grid.workspace : workspace->untyped_data();
    const bool periods[3] = {false, periodic, periodic};
    const Halo halo(grid, width);
    check(cudecompUpdateHalosX(grid.handle, grid.descriptor, to, work, type_of(input.element_type()), halo.extents,
                               periods, halo.axis, nullptr, stream),
          "cudecompUpdateHalosX");
  });
}

}  // namespace decompops::cudecomp

// The XLA-FFI handlers. handlers.cc binds their first argument, the CUDA stream. All handlers take any number of
// leading batch axes.

#pragma once

#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"

namespace decompops::cudecomp {

using Buffer = xla::ffi::AnyBuffer;
using Result = xla::ffi::Result<xla::ffi::AnyBuffer>;

// Transposes between X- and Y-pencils, or between Y- and Z-pencils if `Grid::along` is 1, in cuDecomp's terms. With
// `forward`, the transpose leads from X to Y or from Y to Z. Otherwise it leads back.
xla::ffi::Error transpose(cudaStream_t stream, Buffer input, Result result, Result workspace, std::int64_t grid,
                          bool forward, std::string_view label);

// Updates the halos of X-pencils along Y, or along Z if `Grid::along` is 1. The update is in place: `result` is
// `input`.
xla::ffi::Error halo(cudaStream_t stream, Buffer input, Result result, Result workspace, std::int64_t grid,
                     std::int64_t width, bool periodic, std::string_view label);

// The arguments of the handlers, except for the stream.
template <class Binding>
auto bind_buffers(Binding&& binding) {
  return std::move(binding)
      .template Arg<Buffer>()
      .template Ret<Buffer>()
      .template Ret<Buffer>()
      .template Attr<std::int64_t>("grid");
}

template <class Binding>
auto bind_transpose(Binding&& binding) {
  return bind_buffers(std::move(binding)).template Attr<bool>("forward").template Attr<std::string_view>("label");
}

template <class Binding>
auto bind_halo(Binding&& binding) {
  return bind_buffers(std::move(binding))
      .template Attr<std::int64_t>("width")
      .template Attr<bool>("periodic")
      .template Attr<std::string_view>("label");
}

}  // namespace decompops::cudecomp

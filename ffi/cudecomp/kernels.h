// The XLA-FFI handlers. handlers.cc binds their stream. All handlers take any number of leading batch axes.

#pragma once

#include <cuda_runtime.h>

#include "xla/ffi/api/ffi.h"

namespace decompops::cudecomp {

using Buffer = xla::ffi::AnyBuffer;
using Result = xla::ffi::Result<xla::ffi::AnyBuffer>;

// From X- to Y-pencils (`forward`) or back, in cuDecomp's terms.
xla::ffi::Error transpose(cudaStream_t stream, Buffer input, Result result, Result workspace, std::int64_t grid,
                          bool forward, std::string_view label);

// Updates the halos along Y of X-pencils, in place: `result` is `input`.
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

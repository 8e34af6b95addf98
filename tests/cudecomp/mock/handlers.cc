// The handlers of the kernels for XLA's CPU runtime. They pass no stream, because this runtime has none.

#include <atomic>

#include "cudecomp/api.h"
#include "cudecomp/kernels.h"

using namespace decompops::cudecomp;

namespace {

// A GPU runs the calls of a program one after the other, in the same order on all ranks. XLA's CPU runtime runs calls
// that do not depend on each other in several threads, in any order, so ranks could wait for each other for ever.
template <class Call>
xla::ffi::Error alone(const Call& call) {
  static std::atomic<bool> busy = false;
  if (busy.exchange(true))
    return xla::ffi::Error::Internal("mock: independent calls in one program; make them several");
  const auto result = call();
  busy = false;
  return result;
}

}  // namespace

static xla::ffi::Error transpose_here(Buffer input, Result result, Result workspace, std::int64_t grid, bool forward,
                                      std::string_view label) {
  return alone([&] { return transpose(nullptr, input, result, workspace, grid, forward, label); });
}

static xla::ffi::Error halo_here(Buffer input, Result result, Result workspace, std::int64_t grid, std::int64_t width,
                                 bool periodic, std::string_view label) {
  return alone([&] { return halo(nullptr, input, result, workspace, grid, width, periodic, label); });
}

XLA_FFI_DEFINE_HANDLER(kTranspose, transpose_here, bind_transpose(xla::ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER(kHalo, halo_here, bind_halo(xla::ffi::Ffi::Bind()));

DECOMPOPS_EXPORT void* decompops_cudecomp_transpose() { return reinterpret_cast<void*>(kTranspose); }
DECOMPOPS_EXPORT void* decompops_cudecomp_halo() { return reinterpret_cast<void*>(kHalo); }
DECOMPOPS_EXPORT const char* decompops_cudecomp_platform() { return "cpu"; }

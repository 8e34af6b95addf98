// The handlers for XLA on GPUs, which passes them a CUDA stream.

#include "cudecomp/api.h"
#include "cudecomp/kernels.h"

using namespace decompops::cudecomp;

static auto on_stream() { return xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<cudaStream_t>>(); }

XLA_FFI_DEFINE_HANDLER(kTranspose, transpose, bind_transpose(on_stream()));
XLA_FFI_DEFINE_HANDLER(kHalo, halo, bind_halo(on_stream()));

DECOMPOPS_EXPORT void* decompops_cudecomp_transpose() { return reinterpret_cast<void*>(kTranspose); }
DECOMPOPS_EXPORT void* decompops_cudecomp_halo() { return reinterpret_cast<void*>(kHalo); }
DECOMPOPS_EXPORT const char* decompops_cudecomp_platform() { return "CUDA"; }

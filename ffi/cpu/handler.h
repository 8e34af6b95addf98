// The functions that give XLA the handlers of a library. Each library defines them.

#pragma once

#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace decompops {

// XLA calls the first handler when it compiles an operator, and the second handler when it runs the operator. The first
// handler makes a state for the second handler.
void* instantiate_handler();
void* execute_handler();

// Registers the type of the state if XLA asks the first handler to describe itself, and returns an error or null. XLA
// asks when the handler is registered. JAX has a function for this purpose, but before its first backend starts, it only
// stores what is to be registered, and later registers handlers before types.
template <class Site>
XLA_FFI_Error* register_type(const XLA_FFI_CallFrame* frame, std::string_view name) {
  const XLA_FFI_Extension_Base* extension = frame->extension_start;
  if (extension == nullptr || extension->type != XLA_FFI_Extension_Metadata) return nullptr;
  return xla::ffi::Ffi::RegisterTypeId(frame->api, name, &Site::id, &Site::info);
}

}  // namespace decompops

// The functions that give XLA the handlers of a library. Each library defines them. Their common part is here.

#pragma once

#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace decompops {

// XLA calls the first handler when it compiles an operator, and the second handler when it runs the operator. The first
// handler makes a state for the second handler.
void* instantiate_handler();
void* execute_handler();
// The second handler of exchanges of rows. The first handler is the same.
void* rows_handler();

// The first handler: it makes a `Site`, the state. If XLA asks the handler to describe itself, which it does when the
// handler is registered, the type of the state is registered first. JAX has a function for this purpose, but before its
// first backend starts, it only stores what is to be registered, and later registers handlers before types.
template <class Site, XLA_FFI_Handler* instantiate>
XLA_FFI_Error* describe_or_instantiate(XLA_FFI_CallFrame* frame) {
  const auto* extension = frame->extension_start;  // The name of the type depends on the version of JAX.
  while (extension != nullptr && extension->type != XLA_FFI_Extension_Metadata) extension = extension->next;
  if (extension != nullptr) {
    XLA_FFI_Error* error = xla::ffi::Ffi::RegisterTypeId(frame->api, Site::name, &Site::id, &Site::info);
    if (error != nullptr) return error;
  }
  return instantiate(frame);
}

}  // namespace decompops

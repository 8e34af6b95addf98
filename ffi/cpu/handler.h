// What XLA calls. Each library has its own.

#pragma once

namespace decompops {

// The handlers that XLA calls when it compiles an operator and when it runs it, and the type of the state in between.
void* instantiate_handler();
void* execute_handler();
void* site_type_id();
void* site_type_info();

}  // namespace decompops

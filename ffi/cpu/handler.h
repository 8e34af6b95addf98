// The functions that give XLA the handlers of a library. Each library defines them.

#pragma once

namespace decompops {

// XLA calls the first handler when it compiles an operator, and the second when it runs the operator. The state that
// the first handler makes for the second has this type.
void* instantiate_handler();
void* execute_handler();
void* site_type_id();
void* site_type_info();

}  // namespace decompops

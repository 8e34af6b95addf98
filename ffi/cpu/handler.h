// The functions that give XLA the handlers of a library. Each library defines them.

#pragma once

namespace decompops {

// XLA calls the first handler when it compiles an operator, and the second handler when it runs the operator. The last
// function returns the type of the state that the first handler makes for the second one.
void* instantiate_handler();
void* execute_handler();
void* site_type_id();
void* site_type_info();

}  // namespace decompops

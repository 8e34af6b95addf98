// The functions that give XLA the handlers of a library. Each library defines them.

#pragma once

namespace decompops {

// XLA calls the first handler when it compiles an operator, and the second handler when it runs the operator. The first
// handler makes a state for the second handler. The last two functions return the id and the description of the type of
// this state.
void* instantiate_handler();
void* execute_handler();
void* site_type_id();
void* site_type_info();

}  // namespace decompops

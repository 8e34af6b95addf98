// What XLA calls.

#pragma once

namespace decompops::mpi {

// The handlers of the stages of a call, and what JAX registers of the state between them.
void* instantiate_handler();
void* execute_handler();
void* site_type_id();
void* site_type_info();

}  // namespace decompops::mpi

// One line instead of the page that JAX prints when it ends a process.

#pragma once

namespace decompops::mpi {

// JAX ends a process that has lost its coordinator, or that hears from it that another process is gone: it prints its
// own state and a stack trace to the C stream `stderr`, and aborts. From here on `say_end` writes one line instead.
// All other text is passed on as it comes. Does nothing without glibc, where `stderr` cannot be replaced.
void shorten_jax_errors();

}  // namespace decompops::mpi

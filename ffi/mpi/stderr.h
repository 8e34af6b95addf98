// One line instead of the page that JAX prints when it ends a process.

#pragma once

namespace decompops::mpi {

// JAX ends a process that has lost its coordinator, or whose coordinator reports that another process is gone. JAX then
// prints its own state and a stack trace to the C stream `stderr`, and aborts. After a call of this function, `say_end`
// writes one line instead. All other text is passed on unchanged. Without glibc, `stderr` cannot be replaced, and the
// function does nothing.
void shorten_jax_errors();

}  // namespace decompops::mpi

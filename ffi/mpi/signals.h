// A job that is ended from outside says which operator it was in.

#pragma once

namespace decompops::mpi {

// What this rank is in or waits for: a text that lives until `set_current` is called with another one, or
// `clear_current` with the same one.
void set_current(const char* label);
void clear_current(const char* label);

// MPI's launcher sends SIGTERM when a rank has died, and batch systems send it when a job's time is over. JAX ends itself
// by SIGABRT when its coordinator, rank 0, has died.
void watch_signals(int rank);

}  // namespace decompops::mpi

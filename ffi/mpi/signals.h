// A rank that is terminated says by what, and in which operator.

#pragma once

namespace decompops::mpi {

// What this rank is in or waits for: a text that lives until `set_current` is called with another one, or
// `clear_current` with the same one.
void set_current(const char* label);
void clear_current(const char* label);

// Writes one line to standard error: that this rank is terminated, by what, in which operator, and what to look for.
// Further calls write nothing. Signal handlers may call it.
void say_end(const char* by, const char* advice);

// From here on, `say_end` writes nothing.
void say_no_more();

// MPI's launcher sends SIGTERM when a rank has died, and batch systems send it when a job's time is over. The other
// signals are crashes of this rank itself.
void watch_signals(int rank);

}  // namespace decompops::mpi

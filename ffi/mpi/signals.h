// The line that a terminated rank prints: the cause, and the operator.

#pragma once

namespace decompops::mpi {

// The operator in which this rank is, or for which it waits. The text must live until `set_current` is called with
// another text, or `clear_current` with the same text.
void set_current(const char* label);
void clear_current(const char* label);

// Writes one line to standard error: what terminated this rank, in which operator, and what to look for.
// Further calls write nothing. Signal handlers may call this function.
void say_end(const char* by, const char* advice);

// After this call, `say_end` writes nothing.
void say_no_more();

// Calls `say_end` when a signal terminates this rank. MPI's launcher sends SIGTERM when a rank has died, and batch
// systems send it when a job's time is over. All other signals that are watched are crashes of this rank itself.
// If the program already has a handler of SIGTERM, this handler is called, too.
void watch_signals(int rank);
// Call this after the program has installed or removed a handler of SIGTERM. Handlers of crashes stay as they are. The
// program may have put one in front, as `faulthandler` does. If both were in front of each other, they would run in turn.
void watch_sigterm();

// Whether a handler of the program got SIGTERM more than `seconds` seconds ago. Returns true only once for each signal.
bool take_late_request(double seconds);

}  // namespace decompops::mpi

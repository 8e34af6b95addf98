#include "mpi/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace decompops::mpi {
namespace {

// A signal handler may do no more than read these and write.
std::atomic<const char*> current{nullptr};
char name[64];
int process = 0;
struct sigaction previous;

void write_text(const char* text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
}

void on_signal(int signal, siginfo_t*, void*) {
  const char* label = current;
  if (label != nullptr && process == getpid()) {  // and not in a forked child
    write_text(name);
    write_text(label);
    write_text("\n");
  }
  // MPI's own handler of SIGABRT prints the stack, which says nothing of decompops.
  if (signal == SIGTERM) {
    sigaction(signal, &previous, nullptr);
  } else {
    std::signal(signal, SIG_DFL);
  }
  raise(signal);
}

}  // namespace

void set_current(const char* label) { current = label; }

void clear_current(const char* label) { current.compare_exchange_strong(label, nullptr); }

void watch_signals(int rank) {
  std::snprintf(name, sizeof(name), "decompops: rank %d was terminated in ", rank);
  process = getpid();
  struct sigaction action{}, other{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTERM, &action, &previous);
  sigaction(SIGABRT, &action, &other);
}

}  // namespace decompops::mpi

#include "mpi/signals.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace decompops::mpi {
namespace {

struct Watched {
  int signal;
  const char* name;
  const char* advice;
  struct sigaction previous;
};

constexpr const char* kCrash = "compiled code has crashed; `python -X faulthandler` shows what had called it";

// The state of the signal handler, which may use only variables like these and the system call `write`.
Watched watched[] = {
    {SIGTERM, "SIGTERM", "look for an earlier error of another rank, or at the job's time limit", {}},
    {SIGABRT, "SIGABRT", "the lines before this one say why", {}},
    {SIGSEGV, "SIGSEGV", kCrash, {}},
    {SIGBUS, "SIGBUS", kCrash, {}},
    {SIGFPE, "SIGFPE", kCrash, {}},
};
std::atomic<const char*> current{nullptr};
std::atomic<bool> said{false};
char name[64];
int process = 0;

void on_signal(int signal, siginfo_t* info, void*) {
  for (const Watched& one : watched) {
    if (one.signal != signal) continue;
    // If the program itself handles SIGTERM, the signal need not end the program.
    const bool ends = signal != SIGTERM || one.previous.sa_handler == SIG_DFL;
    if (ends || current != nullptr) say_end(one.name, one.advice);
    sigaction(signal, &one.previous, nullptr);
  }
  // A signal that another process has sent is raised again. A fault of this program needs no `raise`: it happens again
  // when this handler returns, and the previous handler then sees the address of the fault.
  if (info->si_code <= 0) raise(signal);
}

}  // namespace

void set_current(const char* label) { current = label; }

void clear_current(const char* label) { current.compare_exchange_strong(label, nullptr); }

void say_end(const char* by, const char* advice) {
  if (said || process != getpid()) return;  // a forked child says nothing
  const char* label = current;
  const char* place = label != nullptr ? " in " : " outside of operators";
  const char* const parts[] = {name, by, place, label != nullptr ? label : "", ": ", advice};
  char line[2048];  // written in one piece, because lines of other ranks may come in between
  std::size_t size = 0;
  for (const char* part : parts) {
    const std::size_t length = std::min(std::strlen(part), sizeof(line) - 1 - size);
    std::memcpy(line + size, part, length);
    size += length;
  }
  line[size++] = '\n';
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line, size);
  said = true;  // set last: if two threads end the process at the same time, two lines are better than none
}

void say_no_more() { said = true; }

void watch_signals(int rank) {
  std::snprintf(name, sizeof(name), "decompops: rank %d was terminated by ", rank);
  process = getpid();
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (Watched& one : watched) {
    sigaction(one.signal, &action, &one.previous);
    // MPI's own handler of SIGABRT prints the stack, which does not name the operator.
    if (one.signal == SIGABRT) one.previous = {};
  }
}

}  // namespace decompops::mpi

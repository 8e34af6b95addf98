#include "mpi/signals.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace decompops::mpi {
namespace {

struct Watched {
  int signal;
  const char* name;
  const char* advice;
  struct sigaction previous;
};

constexpr const char* kCrash = "compiled code has crashed; `python -X faulthandler` shows what had called it";

// The state of the signal handler, which may use only variables like these, and functions like
// `write` and `clock_gettime`.
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
std::atomic<double> requested{0};  // the time of the last SIGTERM that the program itself has handled, or 0
int process = 0;

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

bool is(const struct sigaction& action, void (*handler)(int)) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == handler;
}

void on_signal(int signal, siginfo_t* info, void* context) {
  for (const Watched& one : watched) {
    if (one.signal != signal) continue;
    const struct sigaction& previous = one.previous;
    if (signal == SIGTERM && !is(previous, SIG_DFL)) {
      // The program itself handles SIGTERM. It may save its state first, so this handler stays in place.
      requested = now();
      if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(signal, info, context);
      } else if (!is(previous, SIG_IGN)) {
        previous.sa_handler(signal);
      }
      return;
    }
    say_end(one.name, one.advice);
    sigaction(signal, &previous, nullptr);
  }
  // A signal that another process has sent is raised again. A fault of this program needs no `raise`: it happens again
  // when this handler returns, and the previous handler then sees the address of the fault.
  if (info->si_code <= 0) raise(signal);
}

// Puts the handler in front of the one that is installed.
void watch(Watched& one) {
  struct sigaction action{}, previous{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(one.signal, nullptr, &previous);
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction == on_signal) return;
  one.previous = previous;
  sigaction(one.signal, &action, nullptr);
  // MPI's own handler of SIGABRT prints the stack, which does not name the operator.
  if (one.signal == SIGABRT) one.previous = {};
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

bool take_late_request(double seconds) {
  double time = requested;
  return time > 0 && now() - time > seconds && requested.compare_exchange_strong(time, 0);
}

void watch_signals(int rank) {
  std::snprintf(name, sizeof(name), "decompops: rank %d was terminated by ", rank);
  process = getpid();
  for (Watched& one : watched) watch(one);
}

void watch_sigterm() {
  requested = 0;  // of a handler that may be gone
  for (Watched& one : watched) {
    if (one.signal == SIGTERM) watch(one);
  }
}

}  // namespace decompops::mpi

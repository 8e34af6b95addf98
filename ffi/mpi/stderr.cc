#include "mpi/stderr.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "mpi/signals.h"

namespace decompops::mpi {

#ifdef __GLIBC__
namespace {

constexpr std::string_view kFatal = "] Terminating process because the JAX distributed service detected fatal errors";
constexpr std::string_view kStatus = "absl::Status: ";
constexpr std::string_view kSilent = "(stopped sending heartbeats):\n";
// JAX logs these messages before the fatal message, for the same error. They are dropped.
constexpr std::string_view kPolled = "] Polled an error from coordination service";
constexpr std::string_view kShared = "] Use error polling to propagate the following error to all tasks";

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::string in_one_line(std::string_view text) {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

// The meaning of an error of JAX's coordination service, and what to look for.
std::string advice_on(std::string_view text) {
  if (has(text, "Failed to send RPC") || has(text, "DEADLINE_EXCEEDED")) {
    return "rank 0, JAX's coordinator, has ended or does not answer; look for its last lines, or the launcher's";
  }
  if (const auto start = text.find(kSilent); start != text.npos) {
    text.remove_prefix(start + kSilent.size());
    return "JAX no longer hears from rank " + in_one_line(text.substr(0, text.find("\nThe tasks"))) +
           "; look for its last lines, or the launcher's";
  }
  if (const auto start = text.find(kStatus); start != text.npos) text.remove_prefix(start + kStatus.size());
  return in_one_line(text.substr(0, text.find("\n\nRPC: ")));
}

// JAX's log hands over each message in one piece.
ssize_t pass_on(void* stream, const char* data, std::size_t size) {
  const std::string_view text(data, size);
  if (text.rfind("F", 0) == 0 && has(text, kFatal)) {
    say_end("JAX", advice_on(text).c_str());
    std::abort();  // JAX would print a stack trace, and then abort
  }
  if (text.rfind("E", 0) == 0 && (has(text, kPolled) || has(text, kShared))) return static_cast<ssize_t>(size);
  return static_cast<ssize_t>(std::fwrite(data, 1, size, static_cast<FILE*>(stream)));
}

}  // namespace

void shorten_jax_errors() {
  FILE* stream = fopencookie(stderr, "w", {nullptr, pass_on, nullptr, nullptr});
  if (stream == nullptr) return;
  std::setvbuf(stream, nullptr, _IONBF, 0);
  stream->_fileno = fileno(stderr);  // for code that asks whether `stderr` is a terminal, or reopens it
  stderr = stream;
}
#else
void shorten_jax_errors() {}
#endif

}  // namespace decompops::mpi

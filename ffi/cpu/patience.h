// How long a rank waits for others before it prints a message, and before it gives up.

#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace decompops {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A waiting rank prints a message after `timeout` seconds, and gives up after `limit` seconds. Python sets both numbers
// once, before the first operator.
struct Limits {
  double timeout = 60;
  double limit = 0;  // 0: none
};
Limits& limits();

// One wait. It is reported after `timeout` seconds, and again whenever it has lasted twice as long as at the last
// report.
class Patience {
 public:
  double seconds() const { return seconds_since(start_); }
  bool is_over() const { return seconds() > limits().timeout; }
  // Whether it is time to report.
  bool reports() {
    if (seconds() <= next_) return false;
    next_ = 2 * seconds();
    return true;
  }
  bool has_reached_limit() const { return limits().limit > 0 && seconds() > limits().limit; }

 private:
  Clock::time_point start_ = Clock::now();
  double next_ = limits().timeout;
};

// Writes one line to standard error with a single system call, so that lines of several ranks do not mix.
void report(const std::string& text);

// "rank 3", "ranks 3, 5" or, for more than eight ranks, the first eight "and 4 more".
std::string named(const std::vector<int>& ranks);

}  // namespace decompops

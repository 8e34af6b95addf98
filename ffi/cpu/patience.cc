#include "cpu/patience.h"

#include <unistd.h>

namespace decompops {

Limits& limits() {
  static Limits limits;
  return limits;
}

void report(const std::string& text) {
  const std::string line = "decompops: " + text + "\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

std::string named(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i) text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  return ranks.size() > 8 ? text + " and " + std::to_string(ranks.size() - 8) + " more" : text;
}

}  // namespace decompops

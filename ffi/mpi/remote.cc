#include "mpi/remote.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#ifdef __linux__
#include <sys/uio.h>
#endif

#include "mpi/axes.h"

namespace decompops::mpi {
namespace {

#ifdef __linux__
using Span = iovec;
#else
struct Span {
  void* iov_base;
  std::size_t iov_len;
};
#endif

constexpr std::size_t kSpans = 512;        // in one system call; Linux allows 1024
constexpr Index kStaged = Index{1} << 18;  // bytes that are brought here before they are put in order, in cache

bool read_spans(int pid, std::vector<Span>& to, std::vector<Span>& from) {
#ifdef __linux__
  // A call may stop early, at any byte: it goes on there.
  std::size_t t = 0, f = 0;
  while (f < from.size()) {
    const ssize_t read = process_vm_readv(pid, &to[t], to.size() - t, &from[f], from.size() - f, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    auto advance = [read](std::vector<Span>& spans, std::size_t& first) {
      auto left = static_cast<std::size_t>(read);
      while (first < spans.size() && left >= spans[first].iov_len) left -= spans[first++].iov_len;
      if (left > 0) {
        spans[first].iov_base = static_cast<std::byte*>(spans[first].iov_base) + left;
        spans[first].iov_len -= left;
      }
    };
    advance(to, t);
    advance(from, f);
  }
  return true;
#else
  return (void)pid, (void)to, from.empty();
#endif
}

// Collects spans and reads them, many in a call.
class Reader {
 public:
  explicit Reader(int pid) : pid_(pid) {}

  void add(std::byte* to, const std::byte* from, Index bytes) {
    if (!from_.empty() && end_of(to_) == to && end_of(from_) == from) {
      to_.back().iov_len += bytes;
      from_.back().iov_len += bytes;
      return;
    }
    if (from_.size() == kSpans) flush();
    to_.push_back({to, static_cast<std::size_t>(bytes)});
    from_.push_back({const_cast<std::byte*>(from), static_cast<std::size_t>(bytes)});
  }

  void flush() {
    if (!read_spans(pid_, to_, from_)) {
      throw Failure("the memory of process " + std::to_string(pid_) + " could not be read: " + std::strerror(errno));
    }
    to_.clear();
    from_.clear();
  }

 private:
  static std::byte* end_of(const std::vector<Span>& spans) {
    return static_cast<std::byte*>(spans.back().iov_base) + spans.back().iov_len;
  }

  int pid_;
  std::vector<Span> to_, from_;
};

}  // namespace

bool read_memory(int pid, const void* from, void* to, Index bytes) {
  std::vector<Span> here{{to, static_cast<std::size_t>(bytes)}};
  std::vector<Span> there{{const_cast<void*>(from), static_cast<std::size_t>(bytes)}};
  return read_spans(pid, here, there);
}

void copy_from(int pid, std::byte* to, Strides to_stride, const std::byte* from, Strides from_stride, Strides counts,
               Index element) {
  if (std::any_of(counts.begin(), counts.end(), [](Index n) { return n <= 0; })) return;
  Reader reader(pid);
  std::array<Axis, 4> axes{};
  const int used = simplify(axes, to_stride, from_stride, counts);
  const Axis row = used == 0 ? Axis{1, 1, 1} : axes[used - 1];
  if (row.to == 1 && row.from == 1) {
    for_each(axes.data(), std::max(used - 1, 0), 0, 0,
             [&](Index t, Index f) { reader.add(to + t * element, from + f * element, row.count * element); });
    return reader.flush();
  }
  // Planes of the source's two fastest axes, some rows at a time, are brought here and then put in order.
  std::array<int, 4> order{0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return from_stride[a] > from_stride[b]; });
  const int fast = order[3], second = order[2];
  if (from_stride[fast] != 1) throw Failure("another process's block has no contiguous axis");
  const Index bytes = counts[fast] * element, rows = std::clamp<Index>(kStaged / bytes, 1, counts[second]);
  thread_local std::vector<std::byte> staged;
  staged.resize(rows * bytes);
  Strides part{1, 1, 1, 1}, packed{};
  part[fast] = counts[fast];
  packed[fast] = 1;
  packed[second] = counts[fast];
  for (Index i = 0; i < counts[order[0]]; ++i) {
    for (Index j = 0; j < counts[order[1]]; ++j) {
      for (Index k = 0; k < counts[second]; k += rows) {
        auto start = [&](const Strides& s) { return element * (i * s[order[0]] + j * s[order[1]] + k * s[second]); };
        part[second] = std::min(rows, counts[second] - k);
        for (Index r = 0; r < part[second]; ++r) {
          reader.add(staged.data() + r * bytes, from + start(from_stride) + r * from_stride[second] * element, bytes);
        }
        reader.flush();
        copy(to + start(to_stride), to_stride, staged.data(), packed, part, element);
      }
    }
  }
}

}  // namespace decompops::mpi

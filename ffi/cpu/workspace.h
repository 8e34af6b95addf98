// The work space that all operators reuse. It grows to the size that the largest operator needs.

#pragma once

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "cpu/pieces.h"

namespace decompops {

constexpr Index kHugePage = Index{1} << 21;

// Asks the system for large pages, which cause fewer page faults and fewer address lookups than small pages. Pages that
// are already in use do not change.
inline void prefer_huge_pages(void* memory, Index bytes) {
#ifdef MADV_HUGEPAGE
  const auto start = ceil_div(reinterpret_cast<std::intptr_t>(memory), kHugePage) * kHugePage;
  const auto end = (reinterpret_cast<std::intptr_t>(memory) + bytes) / kHugePage * kHugePage;
  if (start < end) madvise(reinterpret_cast<void*>(start), static_cast<std::size_t>(end - start), MADV_HUGEPAGE);
#endif
}

class Workspace {
 public:
  std::byte* get(Buffer buffer, Index bytes) {
    Block& block = blocks_[buffer];
    if (block.bytes < bytes) {
      block.memory.reset();
      const Index unit = bytes < kHugePage ? kSmallPage : kHugePage;
      const Index whole = ceil_div(bytes, unit) * unit;
      block.memory.reset(static_cast<std::byte*>(std::aligned_alloc(unit, whole)));
      if (!block.memory) throw Failure("no memory for " + std::to_string(bytes) + " bytes of work space");
      prefer_huge_pages(block.memory.get(), whole);
      block.bytes = whole;
    }
    return block.memory.get();
  }

  Index bytes() const {
    Index sum = 0;
    for (const Block& block : blocks_) sum += block.bytes;
    return sum;
  }

 private:
  static constexpr Index kSmallPage = Index{1} << 12;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    Index bytes = 0;
  };
  std::array<Block, kBuffers> blocks_;
};

}  // namespace decompops

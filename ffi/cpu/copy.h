// Strided copies, the inner loops of everything that is not a Fourier transform.

#pragma once

#include <cstddef>

#include "cpu/numbers.h"
#include "cpu/pieces.h"

namespace decompops {

using Strides = PerAxis<Index>;

// A result that is larger than this does not stay in the cache until it is read again.
constexpr Index kStreamBytes = Index{1} << 22;

// How a copy uses the cache. `stream`: the result is not read again soon, so it bypasses the cache.
// `ahead`: the next cells of the source are needed soon, so they are fetched into the cache meanwhile.
enum class Access { plain, stream, ahead };

// A factor for real or complex numbers whose real part has `real_bytes` bytes.
struct Scale {
  double factor = 1;
  Index real_bytes = 0;
};

// Copies `counts` cells of `element` bytes (1, 2, 4, 8 or 16). Strides are in elements.
void copy(std::byte* to, const Strides& to_stride, const std::byte* from, const Strides& from_stride,
          const Strides& counts, Index element, Access access = Access::plain, const Scale& scale = {});
// Call this after copies with `Access::stream`, before other threads or ranks read the result.
void finish_streams();
void zero(std::byte* to, Strides to_stride, const Strides& counts, Index element);
void add(std::byte* to, const Strides& to_stride, const std::byte* from, const Strides& from_stride,
         const Strides& counts, Number number);

}  // namespace decompops

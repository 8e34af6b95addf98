// Transforms of a few lines, and the memory in which these lines are collected.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "cpu/fft.h"
#include "cpu/lines.h"

namespace decompops {

// FFTW is by far fastest if lines are contiguous, and the result goes to another array. A transpose while a tile is
// loaded and stored costs less than strided lines in FFTW (docs/kernels_steps.md). So a tile holds some lines, one after
// the other. If their length is a power of two, gaps between the lines keep them from falling into the same cache set.
// If lines are so short that a tile stays in the first level of the cache, FFTW is as fast on lines that lie side by
// side. In this case, nothing is transposed.
constexpr Index kTileBytes = 256;  // bytes of one cell from each line of a tile: whole cache lines, and few pages
constexpr Index kSideBySideBytes = 1 << 14;    // the largest tile of lines that lie side by side, for the first level
constexpr Index kStridedBytes = 1 << 15;       // the most bytes from the first to the last cell of a line in place
constexpr Index kLeastTileBytes = kCacheLine;  // the smallest replacement of `kTileBytes` for long lines
constexpr Index kCacheBytes = 1 << 17;         // the largest tile, for the second level of the cache

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using LineMemory = std::unique_ptr<std::byte, Free>;

inline LineMemory allocate_lines(Index least) {
  const Index bytes = whole_cache_lines(least);
  auto memory = static_cast<std::byte*>(std::aligned_alloc(kCacheLine, bytes));
  if (memory == nullptr) throw Failure("no memory for " + std::to_string(bytes) + " bytes of lines");
  return LineMemory(memory);
}

// Transforms of tiles of one kind, with the memory of the tile. Each thread keeps its tiles until the thread ends.
class Tile {
 public:
  template <class Real>
  static std::unique_ptr<Tile> make(const Lines& lines, Index width, const Spacing& in, const Spacing& out,
                                    Planning planning) {
    auto tile = std::unique_ptr<Tile>(new Tile(lines, width, in, out, sizeof(Real)));
    const LinesOfTile shape{lines.transform, lines.length, width, in, out};
    tile->fft_ = make_fft<Real>(shape, tile->input(), tile->output(), planning);
    tile->clear();
    return tile;
  }

  // Transforms lines that are arranged and aligned like the lines of the tile. Only a transform from complex to real
  // numbers changes its input.
  void run(std::byte* from, std::byte* to) const { fft_->run(from, to); }

  std::byte* input() { return input_.get(); }
  std::byte* output() { return output_.get(); }
  Index width() const { return width_; }
  Index in_bytes() const { return in_bytes_; }  // of a cell
  Index out_bytes() const { return out_bytes_; }
  const Spacing& in() const { return in_; }
  const Spacing& out() const { return out_; }
  void clear() { std::memset(input(), 0, input_bytes_); }

 private:
  Tile(const Lines& lines, Index width, const Spacing& in, const Spacing& out, Index real_bytes)
      : in_bytes_(real_bytes * lines.transform.reals_in()),
        out_bytes_(real_bytes * lines.transform.reals_out()),
        width_(width),
        in_(in),
        out_(out),
        input_bytes_(span(in, lines.cells_in()) * in_bytes_),
        input_(allocate_lines(input_bytes_)),
        output_(allocate_lines(span(out, lines.cells_out()) * out_bytes_)) {}

  // The cells from the first to the last one. Where lines overlap, results would be wrong, and FFTW would write beyond
  // the end when it makes its plan.
  Index span(const Spacing& spacing, Index cells) const {
    if (spacing.lines < spacing.cells * cells && spacing.cells < spacing.lines * width_)
      throw Failure("lines of " + std::to_string(cells) + " cells overlap in a tile");
    return std::max(spacing.cells * cells, spacing.lines * width_);
  }

  Index in_bytes_, out_bytes_, width_;
  Spacing in_, out_;
  Index input_bytes_;
  LineMemory input_, output_;
  std::unique_ptr<AbstractFft> fft_;
};

// The number of lines of a tile, for `count` lines in total. With `scattered`, a tile has at least as many lines as a
// cache line has cells, if there are so many lines.
template <class Real>
Index width_for(const Lines& lines, Index count, bool scattered) {
  const Index cell = std::max(lines.transform.reals_in(), lines.transform.reals_out()) * sizeof(Real);
  const Index least = scattered ? kLeastTileBytes / cell : 1;
  Index width = kTileBytes / cell;
  while (width > least && width * cell * lines.length > kCacheBytes) width /= 2;
  while (width / 2 >= count) width /= 2;
  return width;
}

// Whether a tile of lines that lie side by side stays in the first level of the cache.
template <class Real>
bool may_lie_side_by_side(const Lines& lines) {
  const Transform& transform = lines.transform;
  return transform.kind == Transform::Kind::c2c && transform.family == Transform::Family::fourier &&
         kTileBytes * lines.length <= kSideBySideBytes;
}

// Lines one after the other, with a gap.
template <class Real>
Spacing in_rows(Index cells) {
  const Index unit = kCacheLine / sizeof(Real);
  return {1, ceil_div(cells, unit) * unit + unit};
}

template <class Real>
Tile& tile_for(const Lines& lines, Index width, const Spacing& in, const Spacing& out, Planning planning) {
  using Key = std::tuple<Transform::Kind, int, Transform::Family, int, int, Index, Index, Spacing, Spacing, Planning>;
  // Each thread has tiles of its own.
  thread_local std::map<Key, std::unique_ptr<Tile>> tiles;
  const Transform& transform = lines.transform;
  const int sign = transform.kind == Transform::Kind::c2c ? transform.sign : 0;
  auto& tile = tiles[Key{transform.kind, sign, transform.family, transform.type, transform.power, lines.length, width,
                         in, out, planning}];
  if (!tile) tile = Tile::make<Real>(lines, width, in, out, planning);
  return *tile;
}

}  // namespace decompops

// Transforms of a few lines, and the memory that lines are put together in for them.

#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "cpu/fft.h"
#include "cpu/lines.h"

namespace decompops {

// FFTW is fastest by far on contiguous lines, from one array to another; transposing while a tile is loaded and stored
// costs less than letting FFTW stride (docs/kernels.md). So a tile holds some lines, one after the other, with a gap
// that keeps lines of a power of two from falling into the same cache set.
constexpr Index kTileBytes = 256;  // of the axis that lines lie side by side along: whole cache lines, and few pages
constexpr Index kLeastTileBytes = 64;   // of it where lines are long: one cache line
constexpr Index kCacheBytes = 1 << 17;  // of the second level, for all lines of a tile
constexpr Index kAlign = 64;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Transforms of tiles of one kind, with the tile itself. They are kept for the life of the process.
class Tile {
 public:
  using Kind = Transform::Kind;

  // The distances between lines are in cells; 0: what is best.
  template <class Real>
  static std::unique_ptr<Tile> make(const Lines& lines, Index width, Index in_pitch, Index out_pitch,
                                    Planning planning) {
    auto tile = std::unique_ptr<Tile>(new Tile(lines, width, in_pitch, out_pitch, sizeof(Real)));
    const LinesOfTile shape{lines.transform.kind, lines.transform.sign, lines.length, width,
                            tile->in_pitch_,      tile->out_pitch_};
    tile->fft_ = make_fft<Real>(shape, tile->input(), tile->output(), planning);
    tile->clear();
    return tile;
  }

  // From lines that lie as those of the tile do, aligned in the same way; they are not changed unless they are complex and
  // become real.
  void run(std::byte* from, std::byte* to) const { fft_->run(from, to); }

  std::byte* input() { return input_.get(); }
  std::byte* output() { return output_.get(); }
  Index width() const { return width_; }
  Index in_bytes() const { return in_bytes_; }  // of a cell
  Index out_bytes() const { return out_bytes_; }
  Index in_pitch() const { return in_pitch_; }
  Index out_pitch() const { return out_pitch_; }
  void clear() { std::memset(input(), 0, width_ * in_pitch_ * in_bytes_); }

 private:
  Tile(const Lines& lines, Index width, Index in_pitch, Index out_pitch, Index real_bytes)
      : in_bytes_(real_bytes * (lines.transform.kind == Kind::r2c ? 1 : 2)),
        out_bytes_(real_bytes * (lines.transform.kind == Kind::c2r ? 1 : 2)),
        width_(width),
        in_pitch_(in_pitch > 0 ? in_pitch : best_pitch(lines.cells_in(), real_bytes)),
        out_pitch_(out_pitch > 0 ? out_pitch : best_pitch(lines.cells_out(), real_bytes)),
        input_(allocate(in_pitch_ * in_bytes_)),
        output_(allocate(out_pitch_ * out_bytes_)) {}

  static Index best_pitch(Index cells, Index real_bytes) {
    const Index unit = kAlign / real_bytes;
    return ceil_div(cells, unit) * unit + unit;
  }
  std::unique_ptr<std::byte, Free> allocate(Index line_bytes) {
    const Index bytes = ceil_div(width_ * line_bytes, kAlign) * kAlign;
    auto memory = static_cast<std::byte*>(std::aligned_alloc(kAlign, bytes));
    if (memory == nullptr) throw Failure("no memory for " + std::to_string(bytes) + " bytes of lines");
    return std::unique_ptr<std::byte, Free>(memory);
  }

  Index in_bytes_, out_bytes_, width_, in_pitch_, out_pitch_;
  std::unique_ptr<std::byte, Free> input_, output_;
  std::unique_ptr<AbstractFft> fft_;
};

// How many lines a tile has, where there are `count` of them. With `scattered`, at least as many as share a cache line.
template <class Real>
Index width_for(const Lines& lines, Index count, bool scattered) {
  const Index cell = 2 * sizeof(Real);
  const Index least = scattered ? kLeastTileBytes / cell : 1;
  Index width = kTileBytes / cell;
  while (width > least && width * cell * lines.length > kCacheBytes) width /= 2;
  while (width / 2 >= count) width /= 2;
  return width;
}

template <class Real>
Tile& tile_for(const Lines& lines, Index width, Index in_pitch, Index out_pitch, Planning planning) {
  using Key = std::tuple<Transform::Kind, int, Index, Index, Index, Index, Planning>;
  // Each thread has tiles of its own.
  thread_local std::map<Key, std::unique_ptr<Tile>> tiles;
  const Transform& transform = lines.transform;
  const int sign = transform.kind == Transform::Kind::c2c ? transform.sign : 0;
  auto& tile = tiles[Key{transform.kind, sign, lines.length, width, in_pitch, out_pitch, planning}];
  if (!tile) tile = Tile::make<Real>(lines, width, in_pitch, out_pitch, planning);
  return *tile;
}

}  // namespace decompops

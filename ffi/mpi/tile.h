// Plans of FFTW, and the memory that lines are put together in for them.

#pragma once

#include <fftw3.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "mpi/lines.h"

namespace decompops::mpi {

// FFTW is fastest by far on contiguous lines, from one array to another; transposing while a tile is loaded and stored
// costs less than letting FFTW stride (docs/kernels.md). So a tile holds some lines, one after the other, with a gap
// that keeps lines of a power of two from falling into the same cache set.
constexpr Index kTileBytes = 256;  // of the axis that lines lie side by side along: whole cache lines, and few pages
constexpr Index kLeastTileBytes = 64;   // of it where lines are long: one cache line
constexpr Index kCacheBytes = 1 << 17;  // of the second level, for all lines of a tile
constexpr Index kAlign = 64;

template <class Real>
struct Fftw;

template <>
struct Fftw<float> {
  using Complex = fftwf_complex;
  using Plan = fftwf_plan;
  static constexpr auto c2c = fftwf_plan_many_dft;
  static constexpr auto r2c = fftwf_plan_many_dft_r2c;
  static constexpr auto c2r = fftwf_plan_many_dft_c2r;
  static constexpr auto run_c2c = fftwf_execute_dft;
  static constexpr auto run_r2c = fftwf_execute_dft_r2c;
  static constexpr auto run_c2r = fftwf_execute_dft_c2r;
};

template <>
struct Fftw<double> {
  using Complex = fftw_complex;
  using Plan = fftw_plan;
  static constexpr auto c2c = fftw_plan_many_dft;
  static constexpr auto r2c = fftw_plan_many_dft_r2c;
  static constexpr auto c2r = fftw_plan_many_dft_c2r;
  static constexpr auto run_c2c = fftw_execute_dft;
  static constexpr auto run_r2c = fftw_execute_dft_r2c;
  static constexpr auto run_c2r = fftw_execute_dft_c2r;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// FFTW plans for tiles of one kind, with the tiles themselves. They are kept for the life of the process.
template <class Real>
class Tile {
 public:
  using Complex = typename Fftw<Real>::Complex;
  using Kind = Transform::Kind;

  // The distances between lines are in cells; 0: what is best.
  Tile(const Lines& lines, Index width, Index in_pitch, Index out_pitch, unsigned planning)
      : kind_(lines.transform.kind),
        in_bytes_(sizeof(Real) * (kind_ == Kind::r2c ? 1 : 2)),
        out_bytes_(sizeof(Real) * (kind_ == Kind::c2r ? 1 : 2)),
        width_(width),
        in_pitch_(in_pitch > 0 ? in_pitch : best_pitch(lines.cells_in())),
        out_pitch_(out_pitch > 0 ? out_pitch : best_pitch(lines.cells_out())) {
    input_ = allocate(in_pitch_ * in_bytes_);
    output_ = allocate(out_pitch_ * out_bytes_);
    const int n = static_cast<int>(lines.length), many = static_cast<int>(width_);
    const int from = static_cast<int>(in_pitch_), to = static_cast<int>(out_pitch_);
    switch (kind_) {
      case Kind::c2c:
        plan_ = Fftw<Real>::c2c(1, &n, many, complex(input()), nullptr, 1, from, complex(output()), nullptr, 1, to,
                                lines.transform.sign, planning);
        break;
      case Kind::r2c:
        plan_ =
            Fftw<Real>::r2c(1, &n, many, real(input()), nullptr, 1, from, complex(output()), nullptr, 1, to, planning);
        break;
      case Kind::c2r:
        plan_ =
            Fftw<Real>::c2r(1, &n, many, complex(input()), nullptr, 1, from, real(output()), nullptr, 1, to, planning);
        break;
    }
    if (plan_ == nullptr) throw Failure("FFTW has no plan for lines of " + std::to_string(lines.length) + " cells");
    clear();
  }

  // From lines that lie as those of the tile do, aligned in the same way; they are not changed unless they are complex and
  // become real.
  void run(std::byte* from, std::byte* to) {
    switch (kind_) {
      case Kind::c2c: return Fftw<Real>::run_c2c(plan_, complex(from), complex(to));
      case Kind::r2c: return Fftw<Real>::run_r2c(plan_, real(from), complex(to));
      case Kind::c2r: return Fftw<Real>::run_c2r(plan_, complex(from), real(to));
    }
  }

  std::byte* input() { return input_.get(); }
  std::byte* output() { return output_.get(); }
  Index width() const { return width_; }
  Index in_bytes() const { return in_bytes_; }  // of a cell
  Index out_bytes() const { return out_bytes_; }
  Index in_pitch() const { return in_pitch_; }
  Index out_pitch() const { return out_pitch_; }
  void clear() { std::memset(input(), 0, width_ * in_pitch_ * in_bytes_); }

 private:
  static Index best_pitch(Index cells) {
    const Index unit = kAlign / static_cast<Index>(sizeof(Real));
    return ceil_div(cells, unit) * unit + unit;
  }
  std::unique_ptr<std::byte, Free> allocate(Index line_bytes) {
    const Index bytes = ceil_div(width_ * line_bytes, kAlign) * kAlign;
    auto memory = static_cast<std::byte*>(std::aligned_alloc(kAlign, bytes));
    if (memory == nullptr) throw Failure("no memory for " + std::to_string(bytes) + " bytes of lines");
    return std::unique_ptr<std::byte, Free>(memory);
  }
  static Complex* complex(std::byte* memory) { return reinterpret_cast<Complex*>(memory); }
  static Real* real(std::byte* memory) { return reinterpret_cast<Real*>(memory); }

  Kind kind_;
  Index in_bytes_, out_bytes_, width_, in_pitch_, out_pitch_;
  std::unique_ptr<std::byte, Free> input_, output_;
  typename Fftw<Real>::Plan plan_ = nullptr;
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
Tile<Real>& tile_for(const Lines& lines, Index width, Index in_pitch, Index out_pitch, unsigned planning) {
  using Key = std::tuple<Transform::Kind, int, Index, Index, Index, Index, unsigned>;
  static std::mutex mutex;  // FFTW's planner is not thread-safe
  // Tiles are per thread; the thread that made one keeps it.
  thread_local std::map<Key, std::unique_ptr<Tile<Real>>> tiles;
  const Transform& transform = lines.transform;
  const int sign = transform.kind == Transform::Kind::c2c ? transform.sign : 0;
  auto& tile = tiles[Key{transform.kind, sign, lines.length, width, in_pitch, out_pitch, planning}];
  if (!tile) {
    std::lock_guard<std::mutex> lock(mutex);
    tile = std::make_unique<Tile<Real>>(lines, width, in_pitch, out_pitch, planning);
  }
  return *tile;
}

}  // namespace decompops::mpi

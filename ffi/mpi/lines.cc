#include "mpi/lines.h"

#ifdef DECOMPOPS_FFTW

#include <fftw3.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "mpi/copy.h"

namespace decompops::mpi {
namespace {

// FFTW is fastest by far on contiguous lines, from one array to another; transposing while a tile is loaded and stored
// costs less than letting FFTW stride (docs/kernels.md). So a tile holds some lines, one after the other, with a gap
// that keeps lines of a power of two from falling into the same cache set.
constexpr Index kTileBytes = 256;  // of the axis that lines lie side by side along: whole cache lines, and few pages
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

  Tile(Transform transform, int sign, Index length, unsigned planning)
      : transform_(transform),
        width_(kTileBytes / static_cast<Index>(sizeof(Complex))),
        in_(transform == Transform::c2r ? length / 2 + 1 : length),
        out_(transform == Transform::r2c ? length / 2 + 1 : length) {
    in_pitch_ = pitch(in_);
    out_pitch_ = pitch(out_);
    input_ = allocate(in_pitch_);
    output_ = allocate(out_pitch_);
    const int n = static_cast<int>(length), many = static_cast<int>(width_);
    const int from = static_cast<int>(in_pitch_), to = static_cast<int>(out_pitch_);
    switch (transform) {
      case Transform::c2c:
        plan_ = Fftw<Real>::c2c(1, &n, many, complex(input()), nullptr, 1, from, complex(output()), nullptr, 1, to,
                                sign, planning);
        break;
      case Transform::r2c:
        plan_ =
            Fftw<Real>::r2c(1, &n, many, real(input()), nullptr, 1, from, complex(output()), nullptr, 1, to, planning);
        break;
      case Transform::c2r:
        plan_ =
            Fftw<Real>::c2r(1, &n, many, complex(input()), nullptr, 1, from, real(output()), nullptr, 1, to, planning);
        break;
    }
    if (plan_ == nullptr) throw Failure("FFTW has no plan for lines of " + std::to_string(length) + " cells");
    std::memset(input(), 0, bytes(in_pitch_));
  }

  void run() {
    switch (transform_) {
      case Transform::c2c: return Fftw<Real>::run_c2c(plan_, complex(input()), complex(output()));
      case Transform::r2c: return Fftw<Real>::run_r2c(plan_, real(input()), complex(output()));
      case Transform::c2r: return Fftw<Real>::run_c2r(plan_, complex(input()), real(output()));
    }
  }

  std::byte* input() { return input_.get(); }
  std::byte* output() { return output_.get(); }
  Index width() const { return width_; }
  Index in_pitch() const { return in_pitch_; }
  Index out_pitch() const { return out_pitch_; }
  void clear() { std::memset(input(), 0, bytes(in_pitch_)); }

 private:
  static Index pitch(Index cells) {
    const Index unit = kAlign / static_cast<Index>(sizeof(Real));
    return ceil_div(cells, unit) * unit + unit;
  }
  Index bytes(Index pitch) const { return width_ * pitch * static_cast<Index>(sizeof(Complex)); }
  std::unique_ptr<std::byte, Free> allocate(Index pitch) {
    auto memory = static_cast<std::byte*>(std::aligned_alloc(kAlign, bytes(pitch)));
    if (memory == nullptr) throw Failure("no memory for " + std::to_string(bytes(pitch)) + " bytes of lines");
    return std::unique_ptr<std::byte, Free>(memory);
  }
  static Complex* complex(std::byte* memory) { return reinterpret_cast<Complex*>(memory); }
  static Real* real(std::byte* memory) { return reinterpret_cast<Real*>(memory); }

  Transform transform_;
  Index width_, in_, out_, in_pitch_ = 0, out_pitch_ = 0;
  std::unique_ptr<std::byte, Free> input_, output_;
  typename Fftw<Real>::Plan plan_ = nullptr;
};

template <class Real>
Tile<Real>& tile_for(const Lines& lines, unsigned planning) {
  using Key = std::tuple<Transform, int, Index, unsigned>;
  static std::mutex mutex;  // FFTW's planner is not thread-safe
  // Tiles are per thread; the thread that made one keeps it.
  thread_local std::map<Key, std::unique_ptr<Tile<Real>>> tiles;
  const int sign = lines.transform == Transform::c2c ? lines.sign : 0;
  auto& tile = tiles[Key{lines.transform, sign, lines.length, planning}];
  if (!tile) {
    std::lock_guard<std::mutex> lock(mutex);
    tile = std::make_unique<Tile<Real>>(lines.transform, sign, lines.length, planning);
  }
  return *tile;
}

// Multiplies (or divides) the modes of half spectra by how often they stand in the full one; conjugates.
template <class Real>
void modify_spectra(std::byte* first, Index count, Index pitch, Index cells, const Lines& lines, bool conjugate,
                    bool divide) {
  const Real sign = conjugate ? Real(-1) : Real(1);
  for (Index i = 0; i < count; ++i) {
    Real* line = reinterpret_cast<Real*>(first) + 2 * i * pitch;
    for (Index k = 0; k < cells; ++k) {
      Real factor = 1;
      if (lines.weighted && k > 0 && 2 * k != lines.length) factor = divide ? Real(0.5) : Real(2);
      line[2 * k] *= factor;
      line[2 * k + 1] *= sign * factor;
    }
  }
}

template <class Real>
void run(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream, unsigned planning,
         const Memory& memory) {
  auto& tile = tile_for<Real>(lines, planning);
  const int along = lines.axis, across = along == 3 ? 2 : 3, third = 6 - along - across;
  const Index in_bytes = sizeof(Real) * (lines.transform == Transform::r2c ? 1 : 2);
  const Index out_bytes = sizeof(Real) * (lines.transform == Transform::c2r ? 1 : 2);
  const bool conjugate_in = lines.transform == Transform::c2r && lines.sign == -1;
  const bool conjugate_out = lines.transform == Transform::r2c && lines.sign == 1;
  const bool modify_in = lines.transform == Transform::c2r && (conjugate_in || lines.weighted);
  const bool modify_out = lines.transform == Transform::r2c && (conjugate_out || lines.weighted);
  Index covered = 0;
  for (const Piece& piece : from.pieces) covered += piece.region.volume();
  const bool has_gaps = covered != from.region.volume();

  auto move = [&](const Field& field, const Region& cells, std::byte* tile_lines, Index pitch, Index element,
                  bool load) {
    Strides stride{};
    stride[along] = 1;
    stride[across] = pitch;
    for (const Piece& piece : field.pieces) {
      const Region common = intersection(piece.region, cells);
      if (common.empty()) continue;
      const Piece part = clipped(piece, common, element);
      std::byte* outside = memory[part.buffer] + part.offset;
      std::byte* inside = tile_lines + element * (common.lo[along] + pitch * (common.lo[across] - cells.lo[across]));
      if (load) {
        copy(inside, stride, outside, part.stride, common.counts(), element, Access::ahead);
      } else {
        const Access access = stream ? Access::stream : Access::plain;
        copy(outside, part.stride, inside, stride, common.counts(), element, access, {lines.scale, sizeof(Real)});
      }
    }
  };

  // Where another pass of the same sweep has more lines, as before a real transform.
  const Index last = std::min(region.hi[across], to.region.hi[across]);
  for (Index batch = region.lo[0]; batch < region.hi[0]; ++batch) {
    for (Index t = region.lo[third]; t < region.hi[third]; ++t) {
      for (Index v = region.lo[across]; v < last; v += tile.width()) {
        const Index end = std::min(v + tile.width(), last);
        const Region lines_here = region.with(0, batch, batch + 1).with(third, t, t + 1).with(across, v, end);
        if (has_gaps) tile.clear();
        move(from, lines_here.with(along, 0, lines.cells_in()), tile.input(), tile.in_pitch(), in_bytes, true);
        if (modify_in) {
          modify_spectra<Real>(tile.input(), end - v, tile.in_pitch(), lines.cells_in(), lines, conjugate_in, true);
        }
        tile.run();
        if (modify_out) {
          modify_spectra<Real>(tile.output(), end - v, tile.out_pitch(), lines.cells_out(), lines, conjugate_out,
                               false);
        }
        move(to, lines_here.with(along, 0, lines.cells_out()), tile.output(), tile.out_pitch(), out_bytes, false);
      }
    }
  }
}

}  // namespace

void transform_lines(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream,
                     Index real_bytes, unsigned planning, const Memory& memory) {
  if (real_bytes == 4) {
    run<float>(lines, from, to, region, stream, planning, memory);
  } else {
    run<double>(lines, from, to, region, stream, planning, memory);
  }
}

unsigned planning_flag(int effort) {
  switch (effort) {
    case 0: return FFTW_ESTIMATE;
    case 1: return FFTW_MEASURE;
    case 2: return FFTW_PATIENT;
    case 3: return FFTW_EXHAUSTIVE;
  }
  throw Failure("there is no planning " + std::to_string(effort));
}

}  // namespace decompops::mpi

#else

namespace decompops::mpi {

void transform_lines(const Lines&, const Field&, const Field&, const Region&, bool, Index, unsigned, const Memory&) {
  throw Failure("the kernels were built without FFTW");
}

unsigned planning_flag(int) { return 0; }

}  // namespace decompops::mpi

#endif

#include "mpi/lines.h"

#ifdef DECOMPOPS_FFTW

#include <fftw3.h>

#include <algorithm>
#include <cmath>
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
  static constexpr auto r2r = fftwf_plan_many_r2r;
  static constexpr auto run_c2c = fftwf_execute_dft;
  static constexpr auto run_r2c = fftwf_execute_dft_r2c;
  static constexpr auto run_c2r = fftwf_execute_dft_c2r;
  static constexpr auto run_r2r = fftwf_execute_r2r;
};

template <>
struct Fftw<double> {
  using Complex = fftw_complex;
  using Plan = fftw_plan;
  static constexpr auto c2c = fftw_plan_many_dft;
  static constexpr auto r2c = fftw_plan_many_dft_r2c;
  static constexpr auto c2r = fftw_plan_many_dft_c2r;
  static constexpr auto r2r = fftw_plan_many_r2r;
  static constexpr auto run_c2c = fftw_execute_dft;
  static constexpr auto run_r2c = fftw_execute_dft_r2c;
  static constexpr auto run_c2r = fftw_execute_dft_c2r;
  static constexpr auto run_r2r = fftw_execute_r2r;
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

fftw_r2r_kind kind_of(Transform::Waves waves) {
  switch (waves) {
    case Transform::Waves::cosine1: return FFTW_REDFT00;
    case Transform::Waves::cosine2: return FFTW_REDFT10;
    case Transform::Waves::cosine3: return FFTW_REDFT01;
    case Transform::Waves::cosine4: return FFTW_REDFT11;
    case Transform::Waves::sine1: return FFTW_RODFT00;
    case Transform::Waves::sine2: return FFTW_RODFT10;
    case Transform::Waves::sine3: return FFTW_RODFT01;
    case Transform::Waves::sine4: return FFTW_RODFT11;
  }
  throw Failure("there are no such waves");  // `decode` has refused them
}

// FFTW plans for tiles of one kind, with the tiles themselves. They are kept for the life of the process.
template <class Real>
class Tile {
 public:
  using Complex = typename Fftw<Real>::Complex;
  using Kind = Transform::Kind;

  Tile(const Lines& lines, Index width, unsigned planning)
      : kind_(lines.transform.kind),
        in_bytes_(sizeof(Real) * (kind_ == Kind::c2c || kind_ == Kind::c2r ? 2 : 1)),
        out_bytes_(sizeof(Real) * (kind_ == Kind::c2c || kind_ == Kind::r2c ? 2 : 1)),
        width_(width) {
    in_pitch_ = pitch(lines.cells_in());
    out_pitch_ = pitch(lines.cells_out());
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
      case Kind::r2r: {
        const fftw_r2r_kind kind = kind_of(lines.transform.waves);
        plan_ = Fftw<Real>::r2r(1, &n, many, real(input()), nullptr, 1, from, real(output()), nullptr, 1, to, &kind,
                                planning);
        break;
      }
    }
    if (plan_ == nullptr) throw Failure("FFTW has no plan for lines of " + std::to_string(lines.length) + " cells");
    clear();
  }

  void run() {
    switch (kind_) {
      case Kind::c2c: return Fftw<Real>::run_c2c(plan_, complex(input()), complex(output()));
      case Kind::r2c: return Fftw<Real>::run_r2c(plan_, real(input()), complex(output()));
      case Kind::c2r: return Fftw<Real>::run_c2r(plan_, complex(input()), real(output()));
      case Kind::r2r: return Fftw<Real>::run_r2r(plan_, real(input()), real(output()));
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
  static Index pitch(Index cells) {
    const Index unit = kAlign / static_cast<Index>(sizeof(Real));
    return ceil_div(cells, unit) * unit + unit;
  }
  std::unique_ptr<std::byte, Free> allocate(Index line_bytes) {
    const Index bytes = width_ * line_bytes;
    auto memory = static_cast<std::byte*>(std::aligned_alloc(kAlign, bytes));
    if (memory == nullptr) throw Failure("no memory for " + std::to_string(bytes) + " bytes of lines");
    return std::unique_ptr<std::byte, Free>(memory);
  }
  static Complex* complex(std::byte* memory) { return reinterpret_cast<Complex*>(memory); }
  static Real* real(std::byte* memory) { return reinterpret_cast<Real*>(memory); }

  Kind kind_;
  Index in_bytes_, out_bytes_, width_, in_pitch_ = 0, out_pitch_ = 0;
  std::unique_ptr<std::byte, Free> input_, output_;
  typename Fftw<Real>::Plan plan_ = nullptr;
};

// How many lines a tile has, where there are `count` of them.
template <class Real>
Index width_for(const Lines& lines, Index count) {
  const Index cell = sizeof(Real) * (lines.transform.kind == Transform::Kind::r2r ? 1 : 2);
  Index width = kTileBytes / cell;
  while (width * cell > kLeastTileBytes && width * cell * lines.length > kCacheBytes) width /= 2;
  while (width / 2 >= count) width /= 2;
  return width;
}

template <class Real>
Tile<Real>& tile_for(const Lines& lines, Index count, unsigned planning) {
  using Key = std::tuple<Transform::Kind, int, Transform::Waves, Index, Index, unsigned>;
  static std::mutex mutex;  // FFTW's planner is not thread-safe
  // Tiles are per thread; the thread that made one keeps it.
  thread_local std::map<Key, std::unique_ptr<Tile<Real>>> tiles;
  const Transform& transform = lines.transform;
  const int sign = transform.kind == Transform::Kind::c2c ? transform.sign : 0;
  const Index width = width_for<Real>(lines, count);
  auto& tile = tiles[Key{transform.kind, sign, transform.waves, lines.length, width, planning}];
  if (!tile) {
    std::lock_guard<std::mutex> lock(mutex);
    tile = std::make_unique<Tile<Real>>(lines, width, planning);
  }
  return *tile;
}

// What is done to the lines of a tile before or after FFTW's transform, one line after the other.
template <class Real>
class Change {
 public:
  static Change before(const Lines& lines) {
    const Transform& transform = lines.transform;
    if (transform.kind == Transform::Kind::c2r) return spectrum(lines, -1, Real(0.5));
    using Waves = Transform::Waves;
    const bool both = transform.waves == Waves::cosine1;
    return ends(lines, transform.before, both || transform.waves == Waves::cosine3,
                both || transform.waves == Waves::sine3);
  }

  static Change after(const Lines& lines) {
    const Transform& transform = lines.transform;
    if (transform.kind == Transform::Kind::r2c) return spectrum(lines, 1, Real(2));
    using Waves = Transform::Waves;
    const bool both = transform.waves == Waves::cosine1;
    return ends(lines, transform.after, both || transform.waves == Waves::cosine2,
                both || transform.waves == Waves::sine2);
  }

  void apply(std::byte* tile, Index count, Index pitch) const {
    if (!conjugate_ && weight_ == 1 && first_ == 1 && last_ == 1) return;
    for (Index i = 0; i < count; ++i) {
      if (cells_ == 0) {
        Real* line = reinterpret_cast<Real*>(tile) + i * pitch;
        line[0] *= first_;
        line[length_ - 1] *= last_;
        continue;
      }
      Real* line = reinterpret_cast<Real*>(tile) + 2 * i * pitch;
      for (Index k = 0; k < cells_; ++k) {
        const Real factor = k > 0 && 2 * k != length_ ? weight_ : Real(1);
        line[2 * k] *= factor;
        line[2 * k + 1] *= conjugate_ ? -factor : factor;
      }
    }
  }

 private:
  // Half spectra are conjugated where FFTW's sign is the other one; modes are multiplied by (or divided by) how often they
  // stand in the full one.
  static Change spectrum(const Lines& lines, int conjugate_for, Real weight) {
    Change change;
    change.length_ = lines.length;
    change.cells_ = lines.length / 2 + 1;
    change.conjugate_ = lines.transform.sign == conjugate_for;
    if (lines.transform.weighted) change.weight_ = weight;
    return change;
  }

  static Change ends(const Lines& lines, int power, bool first, bool last) {
    Change change;
    if (lines.transform.kind != Transform::Kind::r2r || power == 0) return change;
    const Real factor = static_cast<Real>(std::pow(2.0, power / 2.0));
    change.length_ = lines.length;
    if (first) change.first_ = factor;
    if (last) change.last_ = factor;
    return change;
  }

  Index length_ = 0, cells_ = 0;  // of a half spectrum; 0 for a real line
  bool conjugate_ = false;
  Real weight_ = 1, first_ = 1, last_ = 1;
};

// How many cells of each axis a tile takes, and where their lines lie in it: side by side along the fastest axes, as many as
// it has room for.
struct Box {
  Box(const Region& region, int along, Index width) : cells(PerAxis<Index>::filled(region.axes(), 1)), place(cells) {
    Index lines = 1;
    for (int axis = region.axes() - 1; axis >= 0; --axis) {
      place[axis] = lines;
      if (axis == along) continue;
      cells[axis] = std::clamp<Index>(width / lines, 1, region.count(axis));
      lines *= cells[axis];
    }
    cells[along] = region.count(along);
  }

  PerAxis<Index> cells, place;
};

template <class Real>
void run(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream, unsigned planning,
         const Memory& memory) {
  if (region.empty()) return;
  const int along = lines.axis;
  auto lines_of = [along](const Region& part) { return part.volume() / part.count(along); };
  auto& tile = tile_for<Real>(lines, lines_of(region), planning);
  const auto before = Change<Real>::before(lines), after = Change<Real>::after(lines);
  const Box box(region, along, tile.width());
  Index covered = 0;
  for (const Piece& piece : from.pieces) covered += piece.region.volume();
  const bool has_gaps = covered != from.region.volume();

  auto move = [&](const Field& field, const Region& cells, std::byte* tile_lines, Index pitch, Index element,
                  bool load) {
    Strides stride = box.place;
    for (Index& lines_between : stride) lines_between *= pitch;
    stride[along] = 1;
    for (const Piece& piece : field.pieces) {
      const Region common = intersection(piece.region, cells);
      if (common.empty()) continue;
      const Piece part = clipped(piece, common, element);
      std::byte* outside = memory[part.buffer] + part.offset;
      std::byte* inside = tile_lines;
      for (int axis = 0; axis < cells.axes(); ++axis) {
        inside += element * stride[axis] * (common.lo[axis] - cells.lo[axis]);
      }
      if (load) {
        copy(inside, stride, outside, part.stride, common.counts(), element, Access::ahead);
      } else {
        const Access access = stream ? Access::stream : Access::plain;
        copy(outside, part.stride, inside, stride, common.counts(), element, access, {lines.scale, sizeof(Real)});
      }
    }
  };

  for_boxes(region, box.cells, [&](const Region& part) {
    if (has_gaps) tile.clear();
    move(from, part.with(along, 0, lines.cells_in()), tile.input(), tile.in_pitch(), tile.in_bytes(), true);
    before.apply(tile.input(), lines_of(part), tile.in_pitch());
    tile.run();
    after.apply(tile.output(), lines_of(part), tile.out_pitch());
    move(to, part.with(along, 0, lines.cells_out()), tile.output(), tile.out_pitch(), tile.out_bytes(), false);
  });
}

}  // namespace

void transform_lines(const Lines& lines, const Field& from, const Field& to, const Region& region, bool stream,
                     Index real_bytes, unsigned planning, const Memory& memory) {
  if (lines.complex) {
    Lines real = lines;
    real.complex = false;
    return transform_lines(real, parts(from), parts(to), parts(region), stream, real_bytes, planning, memory);
  }
  // Another pass of the same sweep may have more lines, such as one before a real transform.
  const Region here =
      intersection(region, to.region).with(lines.axis, 0, std::max(lines.cells_in(), lines.cells_out()));
  if (real_bytes == 4) {
    run<float>(lines, from, to, here, stream, planning, memory);
  } else {
    run<double>(lines, from, to, here, stream, planning, memory);
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

// One-dimensional Fourier transforms of a few lines, by one of several libraries.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "common/plan.h"

namespace decompops {

// The distances, in cells, between the cells of a line and between lines. `cells` or `lines` is 1.
struct Spacing {
  Index cells, lines;
  bool operator<(const Spacing& other) const { return std::pair(cells, lines) < std::pair(other.cells, other.lines); }
};

// `count` lines of `length` real-space cells. `r2c` always has sign -1, and `c2r` sign +1, whatever `transform.sign` is.
struct LinesOfTile {
  Transform transform;
  Index length, count;
  Spacing in, out;
};

class AbstractFft {
 public:
  virtual ~AbstractFft() = default;
  // Transforms lines that are aligned in memory like the lines given to `make_fft`. `c2r` may change its input.
  virtual void run(std::byte* from, std::byte* to) const = 0;
};

// How long FFTW searches for a fast plan.
enum class Planning { estimate, measure, patient, exhaustive };

// A transform from `input` to `output`. Planning may overwrite both arrays. `Real` is float or double.
template <class Real>
std::unique_ptr<AbstractFft> make_fft(const LinesOfTile& lines, std::byte* input, std::byte* output, Planning planning);

// Loads FFTW, or another library with FFTW's interface such as MKL, from two files, for double and single precision.
// If this function is not called, DUCC transforms lines, if DUCC was compiled in.
void load_fftw(const std::string& double_path, const std::string& single_path);
bool has_ducc();

}  // namespace decompops

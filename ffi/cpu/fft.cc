#include "cpu/fft.h"

#include "cpu/cosine.h"
#include "cpu/fftw.h"

#ifdef DECOMPOPS_DUCC
#include <complex>

#include "ducc0/fft/fft.h"
#include "ducc0/fft/fftnd_impl.h"
#endif

namespace decompops {
namespace {

#ifdef DECOMPOPS_DUCC

// These transforms keep no plan, because DUCC itself keeps the plans of the most recent lengths.
template <class Real>
class DuccLines : public AbstractFft {
  using Complex = std::complex<Real>;
  using Kind = Transform::Kind;

 public:
  explicit DuccLines(const LinesOfTile& lines) : lines_(lines) {}

  void run(std::byte* from, std::byte* to) const override {
    const std::size_t half = lines_.length / 2 + 1, n = lines_.length;
    switch (lines_.transform.kind) {
      case Kind::c2c:
        return ducc0::c2c(input<Complex>(from, n), output<Complex>(to, n), {1}, lines_.transform.sign < 0, Real(1), 1);
      case Kind::r2c: return ducc0::r2c(input<Real>(from, n), output<Complex>(to, half), 1, true, Real(1), 1);
      case Kind::c2r: return ducc0::c2r(input<Complex>(from, half), output<Real>(to, n), 1, false, Real(1), 1);
      case Kind::r2r: break;
    }
  }

 private:
  template <class Cell>
  ducc0::cfmav<Cell> input(std::byte* memory, std::size_t cells) const {
    const Spacing& spacing = lines_.in;
    return {reinterpret_cast<const Cell*>(memory), {count(), cells}, {spacing.lines, spacing.cells}};
  }
  template <class Cell>
  ducc0::vfmav<Cell> output(std::byte* memory, std::size_t cells) const {
    const Spacing& spacing = lines_.out;
    return {reinterpret_cast<Cell*>(memory), {count(), cells}, {spacing.lines, spacing.cells}};
  }
  std::size_t count() const { return static_cast<std::size_t>(lines_.count); }

  LinesOfTile lines_;
};

template <class Real>
std::unique_ptr<AbstractFft> make_ducc(const LinesOfTile& lines) {
  return std::make_unique<DuccLines<Real>>(lines);
}

#else

template <class Real>
std::unique_ptr<AbstractFft> make_ducc(const LinesOfTile&) {
  throw Failure("there is no library for Fourier transforms");
}

#endif

}  // namespace

bool has_ducc() {
#ifdef DECOMPOPS_DUCC
  return true;
#else
  return false;
#endif
}

template <class Real>
std::unique_ptr<AbstractFft> make_fft(const LinesOfTile& lines, std::byte* input, std::byte* output,
                                      Planning planning) {
  if (lines.transform.family != Transform::Family::fourier) return make_cosine<Real>(lines, planning);
  return has_fftw() ? make_fftw<Real>(lines, input, output, planning) : make_ducc<Real>(lines);
}

template std::unique_ptr<AbstractFft> make_fft<float>(const LinesOfTile&, std::byte*, std::byte*, Planning);
template std::unique_ptr<AbstractFft> make_fft<double>(const LinesOfTile&, std::byte*, std::byte*, Planning);

}  // namespace decompops

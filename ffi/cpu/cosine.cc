#include "cpu/cosine.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/tile.h"

namespace decompops {
namespace {

// The bytes of a group of lines. The cells of a group stay in the first level of the cache before and after its Fourier
// transform.
constexpr Index kGroupBytes = 1 << 13;

// Type 2 of n cells x (Makhoul, IEEE Trans. ASSP 28, 1980): V is the Fourier transform of the even cells of x, followed by
// its odd cells from the last to the first. Mode k is the sum of e^{-iθ} V[k] and e^{iθ} V[n-k], for θ = πk/2n. Type 3
// does the reverse. A sine transform changes the sign of every second cell, and reverses the order of modes.
//
// `kReals` is 2 for complex cells, and 1 for real ones, of which V has only the first half.
template <class Real, int kReals>
class CosineLines : public AbstractFft {
 public:
  CosineLines(const LinesOfTile& lines, Planning planning)
      : lines_(lines),
        to_modes_(lines.transform.type == 2),
        is_sine_(lines.transform.family == Transform::Family::sine),
        end_(static_cast<Real>(std::pow(2, lines.transform.power / 2.0))) {
    const Index n = lines.length, modes = kReals == 2 ? n : n / 2 + 1;
    group_ = std::clamp<Index>(kGroupBytes / (kReals * n * static_cast<Index>(sizeof(Real))), 1, lines.count);
    using Kind = Transform::Kind;
    const Kind kind = kReals == 2 ? Kind::c2c : to_modes_ ? Kind::r2c : Kind::c2r;
    const Spacing of_points = in_rows<Real>(n), of_modes = in_rows<Real>(modes);
    points_line_ = kReals * of_points.lines;
    modes_line_ = 2 * of_modes.lines;
    points_ = allocate_lines(group_ * points_line_ * sizeof(Real));
    modes_ = allocate_lines(group_ * modes_line_ * sizeof(Real));
    const Transform transform{kind, to_modes_ ? -1 : 1};
    fft_ = to_modes_
               ? make_fft<Real>({transform, n, group_, of_points, of_modes}, points_.get(), modes_.get(), planning)
               : make_fft<Real>({transform, n, group_, of_modes, of_points}, modes_.get(), points_.get(), planning);
    std::fill_n(points(0), group_ * points_line_, Real(0));
    std::fill_n(modes_of(0), group_ * modes_line_, Real(0));
    for (Index k = 0; 2 * k <= n; ++k) {
      const double angle = M_PI * static_cast<double>(k) / static_cast<double>(2 * n);
      const double factor = kReals == 1 && to_modes_ ? 2 : 1;
      cosines_.push_back(static_cast<Real>(factor * std::cos(angle)));
      sines_.push_back(static_cast<Real>(factor * std::sin(angle)));
    }
  }

  void run(std::byte* from, std::byte* to) const override {
    is_sine_ ? run_as<true>(from, to) : run_as<false>(from, to);
  }

 private:
  template <bool kSine>
  void run_as(std::byte* from, std::byte* to) const {
    for (Index first = 0; first < lines_.count; first += group_) {
      const Index end = std::min(group_, lines_.count - first);
      const Real* x = reinterpret_cast<const Real*>(from) + kReals * lines_.in.lines * first;
      Real* y = reinterpret_cast<Real*>(to) + kReals * lines_.out.lines * first;
      for (Index i = 0; i < end; ++i) {
        const Real* line = x + kReals * lines_.in.lines * i;
        to_modes_ ? gather<kSine>(line, points(i)) : split<kSine>(line, modes_of(i));
      }
      to_modes_ ? fft_->run(points_.get(), modes_.get()) : fft_->run(modes_.get(), points_.get());
      for (Index i = 0; i < end; ++i) {
        Real* line = y + kReals * lines_.out.lines * i;
        to_modes_ ? join<kSine>(modes_of(i), line) : scatter<kSine>(points(i), line);
      }
    }
  }

  // Copies the even cells of `x` to the first half of `v`, and its odd cells in reverse order to the second half.
  template <bool kSine>
  void gather(const Real* x, Real* v) const {
    const Index n = lines_.length;
    const Real sign = kSine ? -1 : 1;
    for (Index j = 0; 2 * j + 1 < n; ++j) {
      for (int part = 0; part < kReals; ++part) {
        v[kReals * j + part] = x[kReals * 2 * j + part];
        v[kReals * (n - 1 - j) + part] = sign * x[kReals * (2 * j + 1) + part];
      }
    }
    if (n % 2 == 1) std::copy_n(x + kReals * (n - 1), kReals, v + kReals * (n / 2));
  }

  // Does the reverse of `gather`.
  template <bool kSine>
  void scatter(const Real* v, Real* x) const {
    const Index n = lines_.length;
    const Real sign = kSine ? -1 : 1;
    for (Index j = 0; 2 * j + 1 < n; ++j) {
      for (int part = 0; part < kReals; ++part) {
        x[kReals * 2 * j + part] = v[kReals * j + part];
        x[kReals * (2 * j + 1) + part] = sign * v[kReals * (n - 1 - j) + part];
      }
    }
    if (n % 2 == 1) std::copy_n(v + kReals * (n / 2), kReals, x + kReals * (n - 1));
  }

  // Returns where mode k of a cosine transform lies in a line. A sine transform has its modes in reverse order.
  template <bool kSine>
  Index place(Index k) const {
    return kReals * (kSine ? lines_.length - 1 - k : k);
  }

  // Returns the modes of the line from its Fourier transform.
  template <bool kSine>
  void join(const Real* v, Real* y) const {
    const Index n = lines_.length;
    for (int part = 0; part < kReals; ++part) y[place<kSine>(0) + part] = 2 * end_ * v[part];
    for (Index k = 1; 2 * k < n; ++k) {
      const Real c = cosines_[k], s = sines_[k];
      Real *low = y + place<kSine>(k), *high = y + place<kSine>(n - k);
      if constexpr (kReals == 1) {
        low[0] = c * v[2 * k] + s * v[2 * k + 1];
        high[0] = s * v[2 * k] - c * v[2 * k + 1];
      } else {
        const Real *a = v + 2 * k, *b = v + 2 * (n - k);
        const Real sum = a[0] + b[0], sum_i = a[1] + b[1], gap = a[0] - b[0], gap_i = a[1] - b[1];
        low[0] = c * sum + s * gap_i;
        low[1] = c * sum_i - s * gap;
        high[0] = s * sum - c * gap_i;
        high[1] = s * sum_i + c * gap;
      }
    }
    if (n % 2 != 0) return;
    const Real middle = kReals * cosines_[n / 2];
    for (int part = 0; part < kReals; ++part) y[place<kSine>(n / 2) + part] = middle * v[n + part];
  }

  // Returns the Fourier transform of a line from its modes.
  template <bool kSine>
  void split(const Real* y, Real* v) const {
    const Index n = lines_.length;
    v[0] = end_ * y[place<kSine>(0)];
    v[1] = kReals == 1 ? 0 : end_ * y[place<kSine>(0) + kReals - 1];
    for (Index k = 1; 2 * k < n; ++k) {
      const Real c = cosines_[k], s = sines_[k];
      const Real *low = y + place<kSine>(k), *high = y + place<kSine>(n - k);
      if constexpr (kReals == 1) {
        v[2 * k] = c * low[0] + s * high[0];
        v[2 * k + 1] = s * low[0] - c * high[0];
      } else {
        Real *a = v + 2 * k, *b = v + 2 * (n - k);
        const Real even = c * low[0] + s * high[0], even_i = c * low[1] + s * high[1];
        const Real odd = s * low[0] - c * high[0], odd_i = s * low[1] - c * high[1];
        a[0] = even - odd_i;
        a[1] = even_i + odd;
        b[0] = even + odd_i;
        b[1] = even_i - odd;
      }
    }
    if (n % 2 != 0) return;
    const Real* middle = y + place<kSine>(n / 2);
    v[n] = 2 * cosines_[n / 2] * middle[0];
    v[n + 1] = kReals == 1 ? 0 : 2 * cosines_[n / 2] * middle[kReals - 1];
  }

  Real* points(Index line) const { return reinterpret_cast<Real*>(points_.get()) + line * points_line_; }
  Real* modes_of(Index line) const { return reinterpret_cast<Real*>(modes_.get()) + line * modes_line_; }

  LinesOfTile lines_;
  bool to_modes_, is_sine_;
  Real end_;  // multiplies the end cell among the modes
  Index group_, points_line_, modes_line_;
  LineMemory points_, modes_;
  std::unique_ptr<AbstractFft> fft_;
  std::vector<Real> cosines_, sines_;
};

}  // namespace

template <class Real>
std::unique_ptr<AbstractFft> make_cosine(const LinesOfTile& lines, Planning planning) {
  if (lines.transform.kind == Transform::Kind::r2r) return std::make_unique<CosineLines<Real, 1>>(lines, planning);
  return std::make_unique<CosineLines<Real, 2>>(lines, planning);
}

template std::unique_ptr<AbstractFft> make_cosine<float>(const LinesOfTile&, Planning);
template std::unique_ptr<AbstractFft> make_cosine<double>(const LinesOfTile&, Planning);

}  // namespace decompops

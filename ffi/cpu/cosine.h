// Cosine and sine transforms of a few lines.

#pragma once

#include <memory>

#include "cpu/fft.h"

namespace decompops {

// A cosine or sine transform of type 2 or 3, by a Fourier transform of the same length. The cells of each line, at the
// input and at the result, lie one after the other.
template <class Real>
std::unique_ptr<AbstractFft> make_cosine(const LinesOfTile& lines, Planning planning);

}  // namespace decompops

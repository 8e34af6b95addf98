// FFTW, loaded at run time: its licence does not allow it to be a part of this library.

#pragma once

#include "cpu/fft.h"

namespace decompops {

bool has_fftw();

template <class Real>
std::unique_ptr<AbstractFft> make_fftw(const LinesOfTile& lines, std::byte* input, std::byte* output,
                                       Planning planning);

}  // namespace decompops

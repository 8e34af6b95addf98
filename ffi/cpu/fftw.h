// FFTW, loaded at run time, because FFTW's licence does not allow this library to contain it.

#pragma once

#include "cpu/fft.h"

namespace decompops {

bool has_fftw();

template <class Real>
std::unique_ptr<AbstractFft> make_fftw(const LinesOfTile& lines, std::byte* input, std::byte* output,
                                       Planning planning);

}  // namespace decompops

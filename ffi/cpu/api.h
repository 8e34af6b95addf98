// The functions that Python calls through ctypes. No C++ exception leaves these functions: they return 0, or they keep
// the text of the error and return -1. Each library includes this file in only one of its source files.

#pragma once

#include <cstring>
#include <exception>

#include "cpu/fft.h"
#include "cpu/handler.h"

#define DECOMPOPS_EXPORT extern "C" __attribute__((visibility("default")))

namespace decompops {

inline char last_error[512];

template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::strncpy(last_error, error.what(), sizeof(last_error) - 1);
    return -1;
  }
}

}  // namespace decompops

DECOMPOPS_EXPORT void* decompops_instantiate() { return decompops::instantiate_handler(); }
DECOMPOPS_EXPORT void* decompops_execute() { return decompops::execute_handler(); }
DECOMPOPS_EXPORT void* decompops_rows() { return decompops::rows_handler(); }

DECOMPOPS_EXPORT const char* decompops_error() { return decompops::last_error; }

DECOMPOPS_EXPORT int decompops_load_fftw(const char* double_path, const char* single_path) {
  return decompops::guarded([&] { decompops::load_fftw(double_path, single_path); });
}

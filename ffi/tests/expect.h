// Assertions for the unit tests.

#pragma once

#include <random>
#include <stdexcept>
#include <string>

#include "common/plan.h"

inline std::mt19937 engine(0);

inline decompops::Index random(decompops::Index low, decompops::Index high) {
  return std::uniform_int_distribution<decompops::Index>(low, high)(engine);
}

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

void test_decoding(int ndim);
void test_decoding_of_noise();

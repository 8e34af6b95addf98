// Assertions for the unit tests, and how a test is run.

#pragma once

#include <cstdio>
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

inline int failed_tests = 0;

template <class Body>
void test(const char* name, const Body& body) {
  try {
    body();
    std::printf("%s: passed\n", name);
  } catch (const std::exception& error) {
    std::printf("%s: FAILED: %s\n", name, error.what());
    std::fflush(stdout);
    ++failed_tests;
  }
}

void test_decoding(int ndim);
void test_decoding_of_noise();
void test_points();

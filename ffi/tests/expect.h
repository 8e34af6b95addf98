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

// The text of the error that `body` throws.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const decompops::Failure& failure) {
    return failure.what();
  }
  return "no error";
}

inline void expect_in(const std::string& part, const std::string& text) {
  expect(text.find(part) != text.npos, "\"" + part + "\" is not in \"" + text + "\"");
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
template <class Real>
void test_narrow_copies();
void test_bits_of_vectors();
void test_norms();
void test_points();
void test_pool();
void test_resizes();
void test_rows();

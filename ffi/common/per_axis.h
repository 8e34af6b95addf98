// Vectors of one value for each axis. The number of axes is known at run time.

#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>

namespace decompops {

// The largest number of axes of a grid. Python reads this number from build.json, which ffi/CMakeLists.txt writes.
constexpr int kMaxAxes = 8;

// A vector without allocated memory, for the inner loops of the kernels. It has room for the axes of a grid and for one
// batch axis.
template <class T>
class PerAxis {
 public:
  constexpr PerAxis() = default;
  constexpr PerAxis(std::initializer_list<T> values) {
    for (const T& value : values) push_back(value);
  }
  static constexpr PerAxis filled(int size, const T& value = {}) {
    PerAxis filled;
    for (int i = 0; i < size; ++i) filled.push_back(value);
    return filled;
  }

  constexpr int size() const { return size_; }
  constexpr T& operator[](int i) { return values_[i]; }
  constexpr const T& operator[](int i) const { return values_[i]; }
  constexpr T* begin() { return values_.data(); }
  constexpr T* end() { return values_.data() + size_; }
  constexpr const T* begin() const { return values_.data(); }
  constexpr const T* end() const { return values_.data() + size_; }
  constexpr const T& back() const { return values_[size_ - 1]; }
  constexpr void push_back(const T& value) { values_[size_++] = value; }
  bool operator==(const PerAxis& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  std::array<T, kMaxAxes + 1> values_{};
  int size_ = 0;
};

}  // namespace decompops

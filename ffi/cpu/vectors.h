// What the kernels need to use the vectors of this processor, also if the library is compiled for older ones.

#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#define DECOMPOPS_HAS_AVX2
#define DECOMPOPS_AVX2 __attribute__((target("avx2,fma")))
#endif
#define DECOMPOPS_INLINE [[gnu::always_inline]] inline

namespace decompops {

inline bool has_avx2() {
#ifdef DECOMPOPS_HAS_AVX2
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
#else
  return false;
#endif
}

}  // namespace decompops

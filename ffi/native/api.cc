#include "cpu/api.h"

#include "native/engine.h"

using namespace decompops;
using namespace decompops::native;

// How many messages devices have handed to each other so far and how many bytes, and the bytes of work space held.
DECOMPOPS_EXPORT int decompops_count(std::int64_t* counts) {
  return guarded([&] {
    const auto found = Engine::get().counts();
    std::copy(found.begin(), found.end(), counts);
  });
}

// Seconds until devices that wait are reported, and until they give up.
DECOMPOPS_EXPORT int decompops_set_limits(double timeout, double limit) {
  return guarded([&] { Engine::get().set_limits(timeout, limit); });
}

#include "cpu/api.h"

#include "native/engine.h"

using namespace decompops;
using namespace decompops::native;

// The messages and bytes between devices so far, and the bytes of work space.
DECOMPOPS_EXPORT int decompops_count(std::int64_t* counts) {
  return guarded([&] {
    const auto found = Engine::get().counts();
    std::copy(found.begin(), found.end(), counts);
  });
}

// The seconds until waiting devices are reported, and until they give up.
DECOMPOPS_EXPORT int decompops_set_limits(double timeout, double limit) {
  return guarded([&] { Engine::get().set_limits(timeout, limit); });
}

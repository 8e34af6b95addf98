#include "cpu/api.h"

#include "native/engine.h"
#include "native/handler.h"

using namespace decompops;
using namespace decompops::native;

DECOMPOPS_EXPORT void* decompops_instantiate() { return instantiate_handler(); }
DECOMPOPS_EXPORT void* decompops_execute() { return execute_handler(); }
DECOMPOPS_EXPORT void* decompops_type_id() { return site_type_id(); }
DECOMPOPS_EXPORT void* decompops_type_info() { return site_type_info(); }

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

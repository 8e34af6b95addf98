// The order of many small numbers.

#pragma once

#include <cstdint>

#include "common/plan.h"

namespace decompops {

// Sets `order` to the places of the keys below `kinds`, sorted by key; equal keys stay in their order. The rest of `order`
// does not change. Sets `found` to the number of keys of each kind.
void put_in_order(const std::int32_t* keys, Index count, int kinds, std::int32_t* order, std::int32_t* found,
                  int threads);

}  // namespace decompops

// The order of many small numbers.

#pragma once

#include <cstdint>

#include "common/plan.h"

namespace decompops {

// Sets `order` to the places of `count` keys, sorted by key; equal keys stay in their order. Keys are from 0 to
// `kinds` - 1; others count as the last kind.
void put_in_order(const std::int32_t* keys, Index count, int kinds, std::int32_t* order, int threads);

}  // namespace decompops

// Which layers of a block go to which rank, by the rule in docs/design_exchanges.md, "Halos as a rule about cells".

#pragma once

#include <vector>

#include "cpu/exchange.h"
#include "cpu/place.h"

namespace decompops {

// The exchange for one `Extend` stage or its transpose. `arrived` has all cells of the result: first the cells that
// this rank had before, then the cells from other ranks, in the buffer `receiving`.
struct Halo {
  Field outgoing, arrived;
  Exchange exchange;
  Index send_bytes = 0, receive_bytes = 0;
};

Halo halo_of(const Stage& stage, const Place& place, const Field& current, const Region& result, Index element,
             Buffer receiving);

}  // namespace decompops

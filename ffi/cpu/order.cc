#include "cpu/order.h"

#include <algorithm>
#include <vector>

#include "cpu/tiles.h"

namespace decompops {

void put_in_order(const std::int32_t* keys, Index count, int kinds, std::int32_t* order, std::int32_t* found,
                  int threads) {
  const int pieces = static_cast<int>(std::clamp<Index>(count / std::max<Index>(kFewPoints, 8 * kinds), 1, kPieces));
  std::vector<Index> next(static_cast<Index>(pieces) * kinds);
  const auto for_each_key = [&](const auto& visit) {
    in_pieces(pieces, threads, [&](int piece) {
      Index* mine = next.data() + static_cast<Index>(piece) * kinds;
      const Index end = count * (piece + 1) / pieces;
      for (Index i = count * piece / pieces; i < end; ++i) {
        // Most keys are no kind, so that they take no time.
        if (keys[i] >= 0 && keys[i] < kinds) visit(i, mine[keys[i]]);
      }
    });
  };
  for_each_key([](Index, Index& number) { ++number; });
  Index sum = 0;
  for (int kind = 0; kind < kinds; ++kind) {
    const Index before = sum;
    for (int piece = 0; piece < pieces; ++piece) {
      Index& place = next[static_cast<Index>(piece) * kinds + kind];
      sum += place;
      place = sum - place;
    }
    found[kind] = static_cast<std::int32_t>(sum - before);
  }
  std::fill(order + sum, order + count, static_cast<std::int32_t>(count));
  for_each_key([&](Index i, Index& place) { order[place++] = static_cast<std::int32_t>(i); });
}

}  // namespace decompops

#include "cpu/order.h"

#include <algorithm>
#include <vector>

#include "cpu/tiles.h"

namespace decompops {
namespace {

constexpr Index kAtOnce = 1024;

}  // namespace

void put_in_order(const std::int32_t* keys, Index count, int kinds, std::int32_t* order, std::int32_t* found,
                  int threads) {
  const int pieces = static_cast<int>(std::clamp<Index>(count / std::max<Index>(kFewPoints, 8 * kinds), 1, kPieces));
  std::vector<Index> next(static_cast<Index>(pieces) * kinds);
  const auto for_each_key = [&](const auto& visit) {
    in_pieces(pieces, threads, [&](int piece) {
      Index* mine = next.data() + static_cast<Index>(piece) * kinds;
      const Index end = count * (piece + 1) / pieces;
      std::int32_t found[kAtOnce];
      for (Index first = count * piece / pieces; first < end; first += kAtOnce) {
        // Most keys are no kind. Finding the others without a branch takes little time.
        const int size = static_cast<int>(std::min(kAtOnce, end - first));
        int number = 0;
        for (int i = 0; i < size; ++i) {
          found[number] = i;
          number += static_cast<std::uint32_t>(keys[first + i]) < static_cast<std::uint32_t>(kinds);
        }
        for (int i = 0; i < number; ++i) visit(first + found[i], mine[keys[first + found[i]]]);
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
  for_each_key([&](Index i, Index& place) { order[place++] = static_cast<std::int32_t>(i); });
}

}  // namespace decompops

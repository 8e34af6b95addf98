// Tests of rows that move between devices: the devices are in one process here.

#include "cpu/rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/expect.h"
#include "tests/row_moves.h"

using namespace decompops;

namespace {

// Copies all rows as the two libraries do. `before` and `after` hold one number for each slot of each device.
std::vector<std::vector<std::int64_t>> moved(const TestMoves& moves,
                                             const std::vector<std::vector<std::int64_t>>& before, bool back) {
  std::vector<std::vector<std::int64_t>> after(moves.devices, std::vector<std::int64_t>(moves.slots, -1));
  std::vector<Rows> rows;
  for (int device = 0; device < moves.devices; ++device) rows.push_back(rows_of(moves.counts(device, back)));
  auto bytes = [](const std::vector<std::int64_t>& numbers) {
    return reinterpret_cast<const std::byte*>(numbers.data());
  };
  for (int to = 0; to < moves.devices; ++to) {
    auto* target = reinterpret_cast<std::byte*>(after[to].data());
    const Index half = moves.slots / 2;
    keep_rows({bytes(before[to]), target, 8}, rows[to].kept, 0, half);
    keep_rows({bytes(before[to]), target, 8}, rows[to].kept, half, moves.slots);
    for (int from = 0; from < moves.devices; ++from) {
      expect(rows[from].sends(to) == rows[to].receives(from), "two devices expect different numbers of rows");
      copy_rows(bytes(before[from]), rows[from].leaving.data() + rows[from].leaving_to[to], target,
                rows[to].entering.data() + rows[to].entering_from[from], rows[to].receives(from), 8);
    }
    copy_rows(bytes(before[to]), rows[to].leaving.data() + rows[to].leaving_to.back(), target,
              rows[to].entering.data() + rows[to].entering_from.back(), rows[to].stays(), 8);
  }
  return after;
}

}  // namespace

void test_rows() {
  std::mt19937 engine(3);
  for (int round = 0; round < 200; ++round) {
    const TestMoves moves(engine);
    std::vector<std::vector<std::int64_t>> before(moves.devices, std::vector<std::int64_t>(moves.slots));
    for (int device = 0; device < moves.devices; ++device) {
      for (Index slot = 0; slot < moves.slots; ++slot) before[device][slot] = 1 + device * moves.slots + slot;
    }
    const auto after = moved(moves, before, false), again = moved(moves, after, true);
    for (int device = 0; device < moves.devices; ++device) {
      const Index count = moves.after(device);
      std::vector<std::int64_t> expected = moves.owned_by(device),
                                found(after[device].begin(), after[device].begin() + count);
      std::sort(found.begin(), found.end());
      expect(found == expected, "rows are lost");
      expect(std::all_of(after[device].begin() + count, after[device].end(), [](auto row) { return row == 0; }),
             "a free slot is not zero");
      for (Index slot = 0; slot < moves.slots; ++slot) {
        const bool has_row = slot < static_cast<Index>(moves.target[device].size());
        expect(again[device][slot] == (has_row ? before[device][slot] : 0), "a row does not come back");
        const bool stays = has_row && slot < count && moves.target[device][slot] == device;
        expect(!stays || after[device][slot] == before[device][slot], "a row that stays changes its slot");
      }
    }
  }
  const Slot leaving[] = {1, 1}, sent[] = {0, 2, 0, 0}, one[] = {0, 1, 0, 0};
  expect_in("leaves twice", error_of([&] { rows_of({leaving, sent, 2, 4, 2, 0, false}); }));
  expect_in("which has none", error_of([&] { rows_of({leaving, one, 1, 4, 2, 0, false}); }));
  expect_in("sends 0 rows and gets 2", error_of([&] { rows_of({leaving, sent, 3, 4, 2, 1, false}); }));
}

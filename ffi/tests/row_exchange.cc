// Tests of exchanges of rows between ranks.

#include <random>

#include "mpi/rows.h"
#include "tests/ranks.h"
#include "tests/row_moves.h"

using namespace decompops;
using namespace decompops::mpi;

// Rows of two arrays move and come back. A rank sends one message to each rank that gets rows from it.
void test_row_exchange() {
  AllRanks all;
  all.messages.connect();
  Workspace workspace;
  std::mt19937 engine(5);  // the same moves on all ranks
  Index messages = 0, bytes = 0;
  for (int round = 0; round < 30; ++round) {
    const TestMoves moves(engine, all.size);
    std::vector<std::int64_t> before(moves.slots), after(moves.slots), again(moves.slots);
    std::vector<std::int16_t> small(moves.slots), small_after(moves.slots), small_again(moves.slots);
    for (Index slot = 0; slot < moves.slots; ++slot) {
      before[slot] = 1 + all.place * moves.slots + slot;
      small[slot] = static_cast<std::int16_t>(before[slot]);
    }
    auto exchange = [&](auto& from, auto& to, auto& other_from, auto& other_to, bool back) {
      auto array = [](auto& source, auto& target) {
        return RowArray{reinterpret_cast<std::byte*>(source.data()), reinterpret_cast<std::byte*>(target.data()),
                        sizeof(source[0])};
      };
      RowMoves mine{
          rows_of(moves.counts(all.place, back)), {array(from, to), array(other_from, other_to)}, moves.slots};
      for (int other = 0; other < all.size; ++other) {
        messages += mine.rows.sends(other) > 0;
        bytes += mine.rows.sends(other) * 10;
      }
      RowExchange one(std::move(mine), 0, all.messages, workspace);
      while (!one.run(0.001)) continue;
    };
    exchange(before, after, small, small_after, false);
    exchange(after, again, small_after, small_again, true);
    const auto expected = moves.owned_by(all.place);
    const Index count = static_cast<Index>(expected.size());
    for (Index slot = 0; slot < moves.slots; ++slot) {
      expect(small_after[slot] == static_cast<std::int16_t>(after[slot]), "arrays move differently");
      expect(slot < count || after[slot] == 0, "a free slot is not zero");
      const bool has_row = slot < static_cast<Index>(moves.target[all.place].size());
      expect(again[slot] == (has_row ? before[slot] : 0), "a row does not come back");
    }
    std::sort(after.begin(), after.begin() + count);
    expect(std::equal(expected.begin(), expected.end(), after.begin()), "rows are lost");
  }
  expect(all.messages.sent() == messages && all.messages.sent_bytes() == bytes, "not one message for each rank");
  MPI_Barrier(MPI_COMM_WORLD);
}

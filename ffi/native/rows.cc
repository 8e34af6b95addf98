// Exchanges of rows between the devices of one process.

#include <algorithm>
#include <memory>

#include "cpu/pool.h"
#include "cpu/row_arguments.h"
#include "cpu/workspace.h"
#include "native/site.h"

namespace ffi = xla::ffi;

namespace decompops::native {
namespace {

// With less work than this, waking a thread takes longer than the work.
constexpr Index kLeastBytes = Index{1} << 16;

const RowMoves& moves_of(const Meeting& meeting, int place) {
  return *static_cast<const RowMoves*>(meeting.arrivals[place]->input);
}

// Copies the rows that device `place` gets from the memory of the other devices, and its own rows that change their slot.
void take_rows(const Meeting& meeting, int place) {
  const RowMoves& mine = moves_of(meeting, place);
  const int devices = static_cast<int>(meeting.devices.size());
  auto take = [&](const RowMoves& other, Index read, Index written, Index count) {
    for (std::size_t i = 0; i < mine.arrays.size(); ++i) {
      copy_rows(other.arrays[i].before, other.rows.leaving.data() + read, mine.arrays[i].after,
                mine.rows.entering.data() + written, count, mine.arrays[i].bytes);
    }
  };
  for (int from = 0; from < devices; ++from) {
    const RowMoves& other = moves_of(meeting, from);
    take(other, other.rows.leaving_to[place], mine.rows.entering_from[from], mine.rows.receives(from));
  }
  take(mine, mine.rows.leaving_to[devices], mine.rows.entering_from[devices], mine.rows.stays());
}

void exchange(const Meeting& meeting, int threads) {
  const int devices = static_cast<int>(meeting.devices.size());
  Index messages = 0, rows = 0;
  for (int to = 0; to < devices; ++to) {
    for (int from = 0; from < devices; ++from) {
      const Index count = moves_of(meeting, to).rows.receives(from);
      if (count != moves_of(meeting, from).rows.sends(to)) throw Failure("devices expect different numbers of rows");
      messages += count > 0;
      rows += count;
    }
  }
  const Index bytes = rows * moves_of(meeting, 0).bytes_of_row();
  threads = static_cast<int>(std::clamp<Index>(bytes / kLeastBytes, 1, std::min(threads, Pool::get().most_threads())));
  Pool::get().run(devices, threads, [&](int place, int) { take_rows(meeting, place); });
  Engine::get().count(messages, bytes);
}

ffi::Future execute(Site* site, ffi::RunId run, std::int32_t device, Slots leaving, Slots sent, Slots count,
                    ffi::RemainingArgs before, ffi::RemainingRets after, ffi::Dictionary) {
  return begin_execution(site, [&](auto& done) {
    const int devices = site->places(), index = site->index_of(device), group = index / devices;
    auto moves = std::make_shared<RowMoves>(
        row_moves(leaving, sent, count, before, after, site->back, devices, index % devices));
    // All devices do this at the same time, each in its own thread, before they meet.
    for (const RowArray& array : moves->arrays) {
      prefer_huge_pages(array.after, moves->slots * array.bytes);
      keep_rows(array, moves->rows.kept, 0, moves->slots);
    }
    auto end = [moves, done](const std::string& error) mutable { done(error); };
    Engine::get().arrive(
        site, run.run_id, group, [&] { return site->meeting_of(group); },
        {index % devices, device, moves.get(), nullptr, end},
        [&](const Meeting& meeting) { exchange(meeting, site->threads); });
  });
}

XLA_FFI_DEFINE_HANDLER(kRows, execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<Site>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<Slots>()
                           .Arg<Slots>()
                           .Arg<Slots>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs());

}  // namespace
}  // namespace decompops::native

namespace decompops {

void* rows_handler() { return reinterpret_cast<void*>(native::kRows); }

}  // namespace decompops

// The handler that XLA calls to exchange rows.

#include <memory>
#include <utility>

#include "cpu/handler.h"
#include "cpu/row_arguments.h"
#include "mpi/rows.h"
#include "mpi/site.h"

namespace ffi = xla::ffi;

namespace decompops::mpi {
namespace {

ffi::Future execute(Site* site, ffi::RunId run, Slots leaving, Slots sent, Slots count, ffi::RemainingArgs before,
                    ffi::RemainingRets after, ffi::Dictionary) {
  return begin_execution(site, [&](auto& done) {
    // The ranks of one group follow each other. The mesh of the plan is that of one group.
    const int devices = static_cast<int>(site->plan.mesh.back()), place = site->team().place(), me = place % devices;
    RowMoves moves = row_moves(leaving, sent, count, before, after, site->back, devices, me);
    const std::size_t bytes = static_cast<std::size_t>(moves.slots * moves.bytes_of_row());
    auto exchange =
        std::make_shared<RowExchange>(std::move(moves), place - me, site->mesh->team.messages(), site->mesh->workspace);
    site->submit(run.run_id, bytes, [exchange](double longest) { return exchange->run(longest); }, done);
  });
}

XLA_FFI_DEFINE_HANDLER(kRows, execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<Site>>()
                           .Ctx<ffi::RunId>()
                           .Arg<Slots>()
                           .Arg<Slots>()
                           .Arg<Slots>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs());

}  // namespace
}  // namespace decompops::mpi

namespace decompops {

void* rows_handler() { return reinterpret_cast<void*>(mpi::kRows); }

}  // namespace decompops

#include "cpu/handler.h"

#include "cpu/workspace.h"
#include "native/site.h"

namespace ffi = xla::ffi;

namespace decompops::native {
namespace {

ffi::Future execute(Site* site, ffi::RunId run, std::int32_t device, ffi::AnyBuffer input,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  return begin_execution(site, [&](auto& done) {
    const Arguments arguments = arguments_of(site->plan, input, *result);
    if (arguments.batch == 0) return done("");
    const int places = site->places(), index = site->index_of(device), group = index / places;
    prefer_huge_pages(result->untyped_data(), static_cast<Index>(result->size_bytes()));
    Engine::get().arrive(
        site, run.run_id, group, [&] { return site->meeting_of(group); },
        {index % places, device, input.untyped_data(), result->untyped_data(), done},
        [&](const Meeting& meeting) {
          Engine::get().run(site->linked(arguments), meeting, site->threads, site->planning);
        });
  });
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate<Site>, bind_site("devices"));

XLA_FFI_DEFINE_HANDLER(kExecute, execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<Site>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attrs());

}  // namespace

}  // namespace decompops::native

namespace decompops {

void* instantiate_handler() {
  return reinterpret_cast<void*>(describe_or_instantiate<native::Site, native::kInstantiate>);
}
void* execute_handler() { return reinterpret_cast<void*>(native::kExecute); }

}  // namespace decompops

#include "cpu/handler.h"

#include <algorithm>
#include <optional>

#include "cpu/site.h"
#include "cpu/workspace.h"
#include "native/engine.h"

namespace ffi = xla::ffi;

namespace decompops::native {
namespace {

// One operator of one compiled program. The ranks of its plan are the devices of all groups, one group after the other.
struct Site : SiteFields {
  static constexpr std::string_view name = "decompops_native_site";
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  std::optional<Ensemble> ensemble;

  void complete() {}
  std::string speaker() const { return "decompops: "; }
  void leave() {}

  // The ensemble is the same for all groups, because each group identifies its devices by their place.
  const Ensemble& linked(int places, const Arguments& arguments) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!ensemble) {
      std::vector<Program> programs;
      for (int place = 0; place < places; ++place) {
        programs.push_back(compile(plan, arguments.batch, arguments.element, arguments.number, place));
      }
      ensemble = link(std::move(programs));
    }
    return *ensemble;
  }
};

ffi::TypeId Site::id = {};
ffi::TypeInfo Site::info = ffi::MakeTypeInfo<Site>();

ffi::Future execute(Site* site, ffi::RunId run, std::int32_t device, ffi::AnyBuffer input,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  return begin_execution(site, input, *result, [&](const Arguments& arguments, const auto& done) {
    const Plan& plan = site->plan;
    const auto found = std::find(plan.ranks.begin(), plan.ranks.end(), device);
    if (found == plan.ranks.end()) throw Failure("device " + std::to_string(device) + " is not in the mesh");
    int places = 1;
    for (Index size : plan.mesh) places *= static_cast<int>(size);
    const int index = static_cast<int>(found - plan.ranks.begin()), group = index / places;
    auto make = [&] {
      const auto first = plan.ranks.begin() + group * places;
      Meeting meeting;
      meeting.label = plan.label;
      meeting.devices.assign(first, first + places);
      meeting.arrivals.resize(places);
      return meeting;
    };
    prefer_huge_pages(result->untyped_data(), static_cast<Index>(result->size_bytes()));
    Engine::get().arrive(site, run.run_id, group, make,
                         {index % places, device, input.untyped_data(), result->untyped_data(), done},
                         [&](const Meeting& meeting) {
                           const Ensemble& ensemble = site->linked(places, arguments);
                           Engine::get().run(ensemble, meeting, site->threads, site->planning);
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

#include "cpu/handler.h"

#include "cpu/arguments.h"
#include "cpu/workspace.h"
#include "native/engine.h"

namespace ffi = xla::ffi;

namespace decompops::native {
namespace {

// One operator of one compiled program.
struct Site {
  static constexpr std::string_view name = "decompops_native_site";
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  Plan plan;  // its ranks are the devices of all groups, one group after the other
  Planning planning;
  int threads;
  std::mutex mutex;
  std::optional<Ensemble> ensemble;

  // The ensemble is the same for all groups, because each group identifies its devices by their place.
  const Ensemble& linked(int places, Index batch, Index element, Number number) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!ensemble) {
      std::vector<Program> programs;
      for (int place = 0; place < places; ++place) programs.push_back(compile(plan, batch, element, number, place));
      ensemble = link(std::move(programs));
    }
    return *ensemble;
  }
};

ffi::TypeId Site::id = {};
ffi::TypeInfo Site::info = ffi::MakeTypeInfo<Site>();

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(ffi::Span<const std::int64_t> numbers,
                                                ffi::Span<const std::int64_t> mesh,
                                                ffi::Span<const std::int64_t> devices, double scale,
                                                std::string_view label, std::int64_t planning, std::int64_t threads) {
  try {
    auto site = std::make_unique<Site>();
    site->plan = plan_of(numbers, mesh, devices, scale, label);
    site->planning = static_cast<Planning>(planning);
    site->threads = static_cast<int>(threads);
    return site;
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("decompops: ") + error.what()));
  }
}

ffi::Future execute(Site* site, ffi::RunId run, std::int32_t device, ffi::AnyBuffer input,
                    ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  ffi::Promise promise;
  ffi::Future future(promise);
  auto done = [promise, site](const std::string& error) mutable {
    if (error.empty()) return promise.SetAvailable();
    try {
      promise.SetError(ffi::Error::Internal("decompops: " + site->plan.label + ": " + error));
    } catch (const std::bad_alloc&) {
      promise.SetError(ffi::Error::Internal("no memory"));
    }
  };
  try {
    const Plan& plan = site->plan;
    const auto [batch, element, number] = arguments_of(plan, input, *result);
    if (batch == 0) {
      done("");
      return future;
    }
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
                         [&, batch = batch, element = element, number = number](const Meeting& meeting) {
                           const Ensemble& ensemble = site->linked(places, batch, element, number);
                           Engine::get().run(ensemble, meeting, site->threads, site->planning);
                         });
  } catch (const std::exception& error) {
    done(error.what());
  }
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<ffi::Span<const std::int64_t>>("numbers")
                           .Attr<ffi::Span<const std::int64_t>>("mesh")
                           .Attr<ffi::Span<const std::int64_t>>("devices")
                           .Attr<double>("scale")
                           .Attr<std::string_view>("label")
                           .Attr<std::int64_t>("planning")
                           .Attr<std::int64_t>("threads"));

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

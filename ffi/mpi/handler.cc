#include "cpu/handler.h"

#include <atomic>
#include <optional>

#include "cpu/site.h"
#include "mpi/executor.h"
#include "mpi/registry.h"
#include "mpi/signals.h"

namespace ffi = xla::ffi;

namespace decompops::mpi {
namespace {

// Computing a block of this many bytes takes less time than waking a thread a few times.
constexpr std::size_t kQuickBytes = 1 << 20;

// One operator of one compiled program.
struct Site : SiteFields {
  static constexpr std::string_view name = "decompops_mpi_site";
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  int communicator;
  Identity identity;
  std::shared_ptr<Mesh> mesh;
  std::optional<SharedProgram> program;
  std::atomic<bool> has_run{false};

  void complete(std::string_view details, std::string_view thread, std::string_view place, std::int64_t key) {
    communicator = static_cast<int>(key);
    plan.details = std::string(details);
    plan.thread = std::string(thread);
    plan.site = std::string(place);
    const auto fingerprint = plan.fingerprint(), name = hash_bytes(thread.data(), thread.size(), 0);
    identity = {fingerprint, Registry::get().count_occurrence(fingerprint, name), name};
    // For messages only. The lines are no part of the fingerprint.
    const auto lines = Registry::get().lines_of(plan.thread, plan.site);
    if (!lines.line.empty()) plan.label += " at " + lines.line;
    plan.details += ", called at " + lines.place;
  }

  std::string speaker() const { return "decompops: rank " + std::to_string(Registry::get().rank()) + ": "; }
  // If several calls are under way, only the last one is recorded.
  void leave() { clear_current(plan.label.c_str()); }

  // The first execution finds the mesh. The team's thread then compiles the program for this rank's place in the mesh.
  Team& team() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!mesh) mesh = Registry::get().mesh_of(communicator, plan.ranks);
    return mesh->team;
  }

  Executor executor(const void* input, void* result, const Arguments& arguments) {
    if (!program) {
      auto program_of = [&](int place) {
        return compile(plan, arguments.batch, arguments.element, arguments.number, place);
      };
      program = share(program_of(mesh->team.place()), program_of, mesh->team.place(), mesh->team.memory().sharing());
    }
    return Executor(*program, mesh->team.messages(), mesh->team.memory(), threads, planning, input, result,
                    mesh->workspace);
  }
};

ffi::TypeId Site::id = {};
ffi::TypeInfo Site::info = ffi::MakeTypeInfo<Site>();

ffi::Future execute(Site* site, ffi::RunId run, ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> result,
                    ffi::Dictionary) {
  return begin_execution(site, input, *result, [&](const Arguments& arguments, const auto& done) {
    Team& team = site->team();
    try {
      Registry::get().enter(site->identity.thread, run.run_id);
    } catch (const Failure& failure) {
      team.refuse(failure.what());  // this call and all later calls fail, on all ranks
    }
    auto call = std::make_shared<Call>();
    call->identity = site->identity;
    call->label = site->plan.label;
    call->details = site->plan.details;
    // The first call is not quick, because FFTW then plans the transforms, which may take seconds. If several threads
    // run programs, no call is quick, so the team's thread runs all calls. Collectives of XLA that follow these calls
    // are then in the same order on all ranks, too.
    call->is_quick = site->has_run && input.size_bytes() <= kQuickBytes && !Registry::get().has_several_threads();
    call->run = [site, from = input.untyped_data(), to = result->untyped_data(), arguments,
                 executor = std::optional<Executor>()](double longest) mutable {
      if (!executor) executor.emplace(site->executor(from, to, arguments));
      const bool has_ended = executor->run(longest);
      if (has_ended) site->has_run = true;
      return has_ended;
    };
    call->done = done;
    set_current(site->plan.label.c_str());
    team.submit(call);
  });
}

constexpr auto kMakeSite = instantiate<Site, std::string_view, std::string_view, std::string_view, std::int64_t>;

XLA_FFI_DEFINE_HANDLER(kInstantiate, kMakeSite,
                       bind_site("ranks")
                           .Attr<std::string_view>("details")
                           .Attr<std::string_view>("thread")
                           .Attr<std::string_view>("site")
                           .Attr<std::int64_t>("communicator"));

XLA_FFI_DEFINE_HANDLER(
    kExecute, execute,
    ffi::Ffi::Bind().Ctx<ffi::State<Site>>().Ctx<ffi::RunId>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());

}  // namespace

}  // namespace decompops::mpi

namespace decompops {

void* instantiate_handler() { return reinterpret_cast<void*>(describe_or_instantiate<mpi::Site, mpi::kInstantiate>); }
void* execute_handler() { return reinterpret_cast<void*>(mpi::kExecute); }

}  // namespace decompops

#include "cpu/handler.h"

#include <atomic>
#include <optional>

#include "cpu/arguments.h"
#include "mpi/executor.h"
#include "mpi/registry.h"
#include "mpi/signals.h"

namespace ffi = xla::ffi;

namespace decompops::mpi {
namespace {

// Computing a block of this many bytes takes less time than waking a thread a few times.
constexpr std::size_t kQuickBytes = 1 << 20;

// One operator of one compiled program.
struct Site {
  static constexpr std::string_view name = "decompops_mpi_site";
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  Plan plan;
  Planning planning;
  int communicator, threads;
  Identity identity;
  std::mutex mutex;
  std::shared_ptr<Mesh> mesh;
  std::optional<SharedProgram> program;
  std::atomic<bool> has_run{false};

  // The first execution finds the mesh. The team's thread then compiles the program for this rank's place in the mesh.
  Team& team() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!mesh) mesh = Registry::get().mesh_of(communicator, plan.ranks);
    return mesh->team;
  }

  Executor executor(const void* input, void* result, Index batch, Index element, Number number) {
    if (!program) {
      auto program_of = [&](int place) { return compile(plan, batch, element, number, place); };
      program = share(program_of(mesh->team.place()), program_of, mesh->team.place(), mesh->team.memory().sharing());
    }
    return Executor(*program, mesh->team.messages(), mesh->team.memory(), threads, planning, input, result,
                    mesh->workspace);
  }
};

ffi::TypeId Site::id = {};
ffi::TypeInfo Site::info = ffi::MakeTypeInfo<Site>();

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(ffi::Span<const std::int64_t> numbers,
                                                ffi::Span<const std::int64_t> mesh, ffi::Span<const std::int64_t> ranks,
                                                double scale, std::string_view label, std::string_view details,
                                                std::string_view thread, std::string_view place,
                                                std::int64_t communicator, std::int64_t planning,
                                                std::int64_t threads) {
  try {
    auto site = std::make_unique<Site>();
    site->plan = plan_of(numbers, mesh, ranks, scale, label);
    site->plan.details = std::string(details);
    site->plan.thread = std::string(thread);
    site->plan.site = std::string(place);
    site->planning = static_cast<Planning>(planning);
    site->communicator = static_cast<int>(communicator);
    site->threads = static_cast<int>(threads);
    const auto fingerprint = site->plan.fingerprint(), name = hash_bytes(thread.data(), thread.size(), 0);
    site->identity = {fingerprint, Registry::get().count_occurrence(fingerprint, name), name};
    // For messages only. The lines are no part of the fingerprint.
    const auto lines = Registry::get().lines_of(site->plan.thread, site->plan.site);
    if (!lines.line.empty()) site->plan.label += " at " + lines.line;
    site->plan.details += ", called at " + lines.place;
    return site;
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("decompops: ") + error.what()));
  }
}

std::string rank_text() { return "decompops: rank " + std::to_string(Registry::get().rank()) + ": "; }

ffi::Future execute(Site* site, ffi::RunId run, ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> result,
                    ffi::Dictionary) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const char* label = site->plan.label.c_str();
  auto done = [promise, label](const std::string& error) mutable {
    clear_current(label);  // if several calls are under way, only the last one is recorded
    if (error.empty()) {
      promise.SetAvailable();
      return;
    }
    try {
      promise.SetError(ffi::Error::Internal(rank_text() + error));
    } catch (const std::bad_alloc&) {
      promise.SetError(ffi::Error::Internal("no memory"));
    }
  };
  try {
    const auto [batch, element, number] = arguments_of(site->plan, input, *result);
    if (batch == 0) {
      done("");
      return future;
    }
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
    call->run = [site, from = input.untyped_data(), to = result->untyped_data(), batch = batch, element = element,
                 number = number, executor = std::optional<Executor>()](double longest) mutable {
      if (!executor) executor.emplace(site->executor(from, to, batch, element, number));
      const bool has_ended = executor->run(longest);
      if (has_ended) site->has_run = true;
      return has_ended;
    };
    call->done = done;
    set_current(label);
    team.submit(call);
  } catch (const std::exception& error) {
    std::string text = "no memory";
    try {
      text = site->plan.label + ": " + error.what();
    } catch (const std::bad_alloc&) {
    }
    done(text);
  }
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<ffi::Span<const std::int64_t>>("numbers")
                           .Attr<ffi::Span<const std::int64_t>>("mesh")
                           .Attr<ffi::Span<const std::int64_t>>("ranks")
                           .Attr<double>("scale")
                           .Attr<std::string_view>("label")
                           .Attr<std::string_view>("details")
                           .Attr<std::string_view>("thread")
                           .Attr<std::string_view>("site")
                           .Attr<std::int64_t>("communicator")
                           .Attr<std::int64_t>("planning")
                           .Attr<std::int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER(
    kExecute, execute,
    ffi::Ffi::Bind().Ctx<ffi::State<Site>>().Ctx<ffi::RunId>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());

}  // namespace

}  // namespace decompops::mpi

namespace decompops {

void* instantiate_handler() { return reinterpret_cast<void*>(describe_or_instantiate<mpi::Site, mpi::kInstantiate>); }
void* execute_handler() { return reinterpret_cast<void*>(mpi::kExecute); }

}  // namespace decompops

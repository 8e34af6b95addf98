// The state that XLA keeps between the two handlers of an operator.

#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cpu/handler.h"
#include "cpu/site.h"
#include "mpi/executor.h"
#include "mpi/registry.h"
#include "mpi/signals.h"

namespace decompops::mpi {

// Computing a block of this many bytes takes less time than waking a thread a few times.
constexpr std::size_t kQuickBytes = 1 << 20;

// One operator of one compiled program.
struct Site : SiteFields {
  static constexpr std::string_view name = "decompops_mpi_site";
  static inline xla::ffi::TypeId id = {};
  static xla::ffi::TypeInfo info;

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

  // Queues an execution. `run` is as in `Call`, and `bytes` is the size of a block.
  void submit(std::int64_t run_id, std::size_t bytes, std::function<bool(double)> run,
              const std::function<void(const std::string&)>& done) {
    Team& own = team();
    try {
      Registry::get().enter(identity.thread, run_id);
    } catch (const Failure& failure) {
      own.refuse(failure.what());  // this call and all later calls fail, on all ranks
    }
    auto call = std::make_shared<Call>();
    call->identity = identity;
    call->label = plan.label;
    call->details = plan.details;
    // The first call is not quick, because FFTW then plans the transforms, which may take seconds. If several threads
    // run programs, no call is quick, so the team's thread runs all calls. Collectives of XLA that follow these calls
    // are then in the same order on all ranks, too.
    call->is_quick = has_run && bytes <= kQuickBytes && !Registry::get().has_several_threads();
    call->run = [this, run = std::move(run)](double longest) {
      const bool has_ended = run(longest);
      if (has_ended) has_run = true;
      return has_ended;
    };
    call->done = done;
    set_current(plan.label.c_str());
    own.submit(call);
  }

  Executor executor(const void* input, void* result, const Arguments& arguments) {
    if (!program) {
      const int own = mesh->team.place();
      const std::vector<int>& sharing = mesh->team.memory().sharing();
      std::vector<int> node = sharing;
      node.push_back(own);
      auto program_of = [&](int place) {
        return compile(plan, arguments.batch, arguments.element, arguments.number, place, node);
      };
      program = share(program_of(own), program_of, own, sharing);
    }
    return Executor(*program, mesh->team.messages(), mesh->team.memory(), threads, planning, input, result,
                    mesh->workspace);
  }
};

inline xla::ffi::TypeInfo Site::info = xla::ffi::MakeTypeInfo<Site>();

}  // namespace decompops::mpi

// The XLA-FFI handler that runs plans, and what Python calls through ctypes.

#include <atomic>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <unistd.h>

#include "mpi/parallel.h"
#include "mpi/program.h"
#include "mpi/team.h"
#include "mpi/workspace.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace decompops::mpi {
namespace {

// --- The registry: communicators by key, teams by communicator and ranks. Freed before MPI is finalised.

// How often each operator has been compiled in this process, by its fingerprint.
std::mutex occurrences_mutex;
std::map<std::uint64_t, std::uint64_t> occurrences;

std::uint64_t count_occurrence(std::uint64_t fingerprint) {
  std::lock_guard<std::mutex> lock(occurrences_mutex);
  return occurrences[fingerprint]++;
}

bool is_compiled(std::uint64_t fingerprint) {
  std::lock_guard<std::mutex> lock(occurrences_mutex);
  return occurrences.count(fingerprint) > 0;
}

struct Communicator {
  MPI_Comm base;
  std::shared_ptr<Notices> notices;
};

struct Mesh {
  Mesh(const Communicator& communicator, const std::vector<int>& ranks)
      : team(communicator.base, communicator.notices, ranks, is_compiled) {}
  Workspace workspace;
  Team team;
};

std::mutex registry_mutex;
std::map<int, Communicator> communicators;
std::map<std::pair<int, std::vector<int>>, std::shared_ptr<Mesh>> meshes;

std::shared_ptr<Mesh> mesh_of(int key, const std::vector<int>& ranks) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  const auto communicator = communicators.find(key);
  if (communicator == communicators.end()) throw Failure("MPI has been finalised, or was never initialised");
  auto found = meshes.find({key, ranks});
  if (found == meshes.end()) {
    found = meshes.emplace(std::pair{key, ranks}, std::make_shared<Mesh>(communicator->second, ranks)).first;
  }
  return found->second;
}

// What this rank is in or waits for, for a signal handler: it may not do more than read a pointer.
std::atomic<const char*> current_label{nullptr};

// --- One operator of one compiled program.

Number number_of(ffi::DataType type) {
  switch (type) {
    case ffi::F16: return Number::f16;
    case ffi::BF16: return Number::bf16;
    case ffi::F32: return Number::f32;
    case ffi::F64: return Number::f64;
    case ffi::C64: return Number::c64;
    case ffi::C128: return Number::c128;
    case ffi::S8: case ffi::U8: return Number::i8;
    case ffi::S16: case ffi::U16: return Number::i16;
    case ffi::S32: case ffi::U32: return Number::i32;
    case ffi::S64: case ffi::U64: return Number::i64;
    default: return Number::other;
  }
}

struct Site {
  static ffi::TypeId id;
  static ffi::TypeInfo info;

  Plan plan;
  unsigned planning;
  int communicator, threads;
  Identity identity;
  std::mutex mutex;
  std::shared_ptr<Mesh> mesh;
  std::optional<Program> program;

  // The first execution finds the mesh and compiles the plan for this rank's place in it.
  void prepare(Index batch, Index element, Number number) {
    std::lock_guard<std::mutex> lock(mutex);
    if (program) return;
    mesh = mesh_of(communicator, plan.ranks);
    program = compile(plan, batch, element, number, mesh->team.rank());
  }

  void run(const void* input, void* result) {
    Memory memory;
    for (int i = 0; i < kBuffers; ++i) {
      const auto buffer = static_cast<Buffer>(i);
      memory[i] = mesh->workspace.get(buffer, program->bytes[i] * (buffer == kPlane ? threads : 1));
    }
    memory[kInput] = static_cast<std::byte*>(const_cast<void*>(input));  // pieces of it are only read
    memory[kResult] = static_cast<std::byte*>(result);
    for (const Step& step : program->steps) {
      std::visit([&](const auto& step) { carry_out(step, memory); }, step);
    }
  }

 private:
  void carry_out(const Copy& step, const Memory& memory) {
    const auto& pieces = step.from.pieces;
    for (const Piece& to : step.to.pieces) {
      std::vector<Region> copied;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!step.sum || i == 0) copied.push_back(pieces[i].region);
      }
      for (const Region& gap : difference(to.region, copied)) {
        const Piece part = clipped(to, gap, step.element);
        zero(memory[part.buffer] + part.offset, part.stride, gap.counts(), step.element);
      }
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const Region common = intersection(pieces[i].region, to.region);
        if (common.empty()) continue;
        const int axis = common.count(1) >= threads ? 1 : 2;
        in_parallel(threads, common, axis, [&](const Region& share, int) {
          copy_piece(step, clipped(pieces[i], share, step.element), clipped(to, share, step.element), i > 0, memory);
        });
      }
    }
  }

  void copy_piece(const Copy& step, const Piece& from, const Piece& to, bool further, const Memory& memory) const {
    std::byte* target = memory[to.buffer] + to.offset;
    const Strides counts = from.region.counts();
    const std::byte* source = memory[from.buffer] + from.offset;
    if (step.sum && further) return add(target, to.stride, source, from.stride, counts, step.number);
    copy(target, to.stride, source, from.stride, counts, step.element, step.stream ? Access::stream : Access::plain);
    finish_streams();
  }

  void carry_out(const Sweep& sweep, const Memory& memory) {
    auto pass_over = [&](const Sweep::Pass& pass, const Region& region, const Memory& memory) {
      transform_lines(pass.lines, pass.from, pass.to, region, pass.stream, sweep.real_bytes, planning, memory);
    };
    Region region = sweep.passes.front().from.region;
    for (const auto& pass : sweep.passes) {
      for (int axis = 0; axis < 4; ++axis) region.hi[axis] = std::max(region.hi[axis], pass.to.region.hi[axis]);
    }
    if (sweep.plane < 0) {
      const auto& pass = sweep.passes.front();
      return in_parallel(threads, region, pass.lines.axis == 1 ? 2 : 1, [&](const Region& part, int) {
        pass_over(pass, part, memory);
        finish_streams();
      });
    }
    in_parallel(threads, region, sweep.plane, [&](const Region& part, int thread) {
      Memory own = memory;
      own[kPlane] += thread * program->bytes[kPlane];
      for (Index batch = part.lo[0]; batch < part.hi[0]; ++batch) {
        for (Index i = part.lo[sweep.plane]; i < part.hi[sweep.plane]; ++i) {
          const Region plane = part.with(0, batch, batch + 1).with(sweep.plane, i, i + 1);
          for (const auto& pass : sweep.passes) pass_over(pass, plane, own);
        }
      }
      finish_streams();
    });
  }

  void carry_out(const Exchange& exchange, const Memory& memory) { mesh->team.exchange(exchange, memory); }
};

ffi::TypeId Site::id = {};
ffi::TypeInfo Site::info = ffi::MakeTypeInfo<Site>();

ffi::ErrorOr<std::unique_ptr<Site>> instantiate(ffi::Span<const std::int64_t> numbers,
                                                ffi::Span<const std::int64_t> mesh,
                                                ffi::Span<const std::int64_t> ranks, double scale,
                                                std::string_view label, std::int64_t communicator,
                                                std::int64_t planning, std::int64_t threads) {
  try {
    auto site = std::make_unique<Site>();
    site->plan = decode(numbers.begin(), numbers.size());
    site->plan.mesh.assign(mesh.begin(), mesh.end());
    site->plan.ranks.assign(ranks.begin(), ranks.end());
    site->plan.scale = scale;
    site->plan.label = std::string(label);
    site->planning = planning_flag(static_cast<int>(planning));
    site->communicator = static_cast<int>(communicator);
    site->threads = static_cast<int>(threads);
    const auto fingerprint = site->plan.fingerprint();
    site->identity = {fingerprint, count_occurrence(fingerprint)};
    return site;
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("decompops: ") + error.what()));
  }
}

Index element_of(const ffi::AnyBuffer& buffer) {
  return buffer.element_count() == 0 ? 0 : static_cast<Index>(buffer.size_bytes() / buffer.element_count());
}

ffi::Future execute(Site* site, ffi::AnyBuffer input, ffi::Result<ffi::AnyBuffer> result, ffi::Dictionary) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const char* label = site->plan.label.c_str();
  auto done = [promise, label](const std::string& error) mutable {
    const char* current = label;  // of several calls, the last one is known
    current_label.compare_exchange_strong(current, nullptr);
    if (error.empty()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ffi::Error::Internal("decompops: " + error));
    }
  };
  try {
    Index batch = 1;
    const auto shape = input.dimensions();
    for (std::size_t i = 0; i + 3 < shape.size(); ++i) batch *= shape[i];
    if (batch == 0) {
      done("");
      return future;
    }
    site->prepare(batch, element_of(input), number_of(input.element_type()));
    auto call = std::make_shared<Call>();
    call->identity = site->identity;
    call->label = site->plan.label;
    call->run = [site, from = input.untyped_data(), to = result->untyped_data()] { site->run(from, to); };
    call->done = done;
    current_label = label;
    site->mesh->team.submit(call);
  } catch (const std::exception& error) {
    done(site->plan.label + ": " + error.what());
  }
  return future;
}

// --- Signals: a job that is ended from outside says what it was in. MPI's launcher sends SIGTERM when a rank has died; JAX
// itself ends by SIGABRT when its coordinator, rank 0, has.

struct sigaction previous_actions[NSIG];

void on_terminate(int signal, siginfo_t*, void*) {
  if (const char* label = current_label) {
    const char text[] = "decompops: terminated in ";
    [[maybe_unused]] auto written = write(2, text, sizeof(text) - 1);
    written = write(2, label, std::strlen(label));
    written = write(2, "\n", 1);
  }
  sigaction(signal, &previous_actions[signal], nullptr);
  raise(signal);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER(kInstantiate, instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<ffi::Span<const std::int64_t>>("numbers")
                           .Attr<ffi::Span<const std::int64_t>>("mesh")
                           .Attr<ffi::Span<const std::int64_t>>("ranks")
                           .Attr<double>("scale")
                           .Attr<std::string_view>("label")
                           .Attr<std::int64_t>("communicator")
                           .Attr<std::int64_t>("planning")
                           .Attr<std::int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER(kExecute, execute,
                       ffi::Ffi::Bind().Ctx<ffi::State<Site>>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attrs());

}  // namespace decompops::mpi

using namespace decompops;
using namespace decompops::mpi;

#define DECOMPOPS_EXPORT extern "C" __attribute__((visibility("default")))

DECOMPOPS_EXPORT void* decompops_instantiate() { return reinterpret_cast<void*>(mpi::kInstantiate); }
DECOMPOPS_EXPORT void* decompops_execute() { return reinterpret_cast<void*>(mpi::kExecute); }
DECOMPOPS_EXPORT void* decompops_type_id() { return &Site::id; }
DECOMPOPS_EXPORT void* decompops_type_info() { return &Site::info; }

// Whether the copy of MPI that these kernels are linked to is the one that has been initialised.
DECOMPOPS_EXPORT int decompops_mpi_runs() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  return initialised;
}

// Takes the communicator of `key` by its Fortran handle. 0, or MPI's error code.
DECOMPOPS_EXPORT int decompops_add_communicator(int key, int handle) {
  MPI_Comm base, notices;
  for (MPI_Comm* copy : {&base, &notices}) {
    if (int code = MPI_Comm_dup(MPI_Comm_f2c(handle), copy)) return code;
    MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
  }
  std::lock_guard<std::mutex> lock(registry_mutex);
  communicators[key] = {base, std::make_shared<Notices>(notices)};
  return 0;
}

// How many messages this rank has sent so far and how many bytes, and the bytes of work space that it holds.
DECOMPOPS_EXPORT void decompops_count(std::int64_t* counts) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  counts[0] = counts[1] = counts[2] = 0;
  for (auto& [key, mesh] : meshes) {
    counts[0] += mesh->team.messages();
    counts[1] += mesh->team.sent_bytes();
    counts[2] += mesh->workspace.bytes();
  }
}

DECOMPOPS_EXPORT void decompops_set_timeout(double seconds) { set_timeout(seconds); }

DECOMPOPS_EXPORT void decompops_watch_signals() {
  struct sigaction action {};
  action.sa_sigaction = on_terminate;
  action.sa_flags = SA_SIGINFO;
  for (int signal : {SIGTERM, SIGABRT}) sigaction(signal, &action, &previous_actions[signal]);
}

// Tells the other ranks that this one cannot go on.
DECOMPOPS_EXPORT void decompops_give_up(const char* reason) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  for (auto& [key, communicator] : communicators) communicator.notices->give_up(0, reason);
}

// Ends everything. To be called by every rank, before MPI is finalised.
DECOMPOPS_EXPORT void decompops_leave() {
  std::lock_guard<std::mutex> lock(registry_mutex);
  for (auto& [key, mesh] : meshes) mesh->team.stop();
  for (auto& [key, communicator] : communicators) communicator.notices->leave();
  for (auto& [key, mesh] : meshes) mesh->team.free();
  meshes.clear();
  for (auto& [key, communicator] : communicators) MPI_Comm_free(&communicator.base);
  communicators.clear();
}

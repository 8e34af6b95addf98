#include "mpi/registry.h"

#include <unistd.h>

#include <algorithm>

#include "mpi/check.h"

namespace decompops::mpi {
namespace {

constexpr std::size_t kRuns = 16;

// MPI_Finalize calls this first, while MPI still works.
int on_finalize(MPI_Comm, int, void*, void*) {
  try {
    Registry::get().leave();
    return MPI_SUCCESS;
  } catch (const std::exception& error) {
    report(std::string("cannot end before MPI does: ") + error.what());
    return MPI_ERR_OTHER;
  }
}

}  // namespace

Registry& Registry::get() {
  static Registry& registry = *new Registry;
  return registry;
}

bool Registry::is_forked() const { return process_ != 0 && process_ != getpid(); }

void Registry::add_communicator(int key, MPI_Comm communicator, bool share) {
  MPI_Comm base, notices;
  for (MPI_Comm* copy : {&base, &notices}) {
    check(MPI_Comm_dup(communicator, copy), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
  }
  Sharing sharing{{}, "`MPI.initialize(share_memory=False)` was called"};
  if (share) sharing = ranks_that_share(base);
  std::lock_guard<std::mutex> lock(mutex_);
  if (process_ == 0) {
    int keyval;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &keyval, nullptr), "MPI_Comm_create_keyval");
    check(MPI_Comm_set_attr(MPI_COMM_SELF, keyval, nullptr), "MPI_Comm_set_attr");
    process_ = getpid();
  }
  const auto known = communicators_.emplace(key, Communicator{base, std::make_shared<Notices>(notices), sharing}).first;
  if (rank_ < 0) rank_ = known->second.notices->rank();
}

std::shared_ptr<Mesh> Registry::mesh_of(int key, const std::vector<int>& ranks) {
  if (is_forked()) {
    throw Failure(
        "this process was forked from one that uses MPI, and cannot use it itself: start it anew "
        "(multiprocessing.set_start_method(\"spawn\"))");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const auto communicator = communicators_.find(key);
  if (communicator == communicators_.end()) throw Failure("MPI has been finalised, or was never initialised");
  auto found = meshes_.find({key, ranks});
  if (found == meshes_.end()) {
    const auto& [base, notices, sharing] = communicator->second;
    auto mesh = std::make_shared<Mesh>(base, notices, ranks, sharing.ranks,
                                       [this](const Identity& identity) { return is_compiled(identity); });
    found = meshes_.emplace(std::pair{key, ranks}, std::move(mesh)).first;
  }
  return found->second;
}

std::uint64_t Registry::count_occurrence(std::uint64_t fingerprint, std::uint64_t thread) {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  threads_.insert(thread);
  has_several_threads_ = threads_.size() > 1;
  return occurrences_[fingerprint]++;
}

void Registry::name_site(const std::string& thread, const std::string& site, Lines lines) {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  lines_[{thread, site}] = std::move(lines);
}

Registry::Lines Registry::lines_of(const std::string& thread, const std::string& site) {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  const auto found = lines_.find({thread, site});
  return found == lines_.end() ? Lines{site, site} : found->second;
}

bool Registry::is_compiled(const Identity& identity) {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  const auto found = occurrences_.find(identity.fingerprint);
  return found != occurrences_.end() && identity.occurrence < found->second;
}

void Registry::enter(std::uint64_t thread, std::int64_t run) {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  Runs& runs = runs_[thread];
  if (runs.current == run) return;
  if (std::find(runs.ended.begin(), runs.ended.end(), run) != runs.ended.end()) {
    throw Failure(
        "several Python threads run compiled programs of the same thread. Compile them in the thread that calls "
        "them, inside `with dops.MPI.thread(name):`");
  }
  if (runs.ended.size() == kRuns) runs.ended.erase(runs.ended.begin());
  if (runs.current) runs.ended.push_back(*runs.current);
  runs.current = run;
}

std::array<Index, 3> Registry::counts() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::array<Index, 3> counts{};
  for (auto& [key, mesh] : meshes_) {
    counts[0] += mesh->team.messages().sent();
    counts[1] += mesh->team.messages().sent_bytes();
    counts[2] += mesh->workspace.bytes() + mesh->team.memory().bytes();
  }
  return counts;
}

Index Registry::announcements() {
  std::lock_guard<std::mutex> lock(mutex_);
  Index sum = 0;
  for (auto& [key, mesh] : meshes_) sum += mesh->team.announcements();
  return sum;
}

void Registry::give_up(const std::string& reason) {
  if (is_forked()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, communicator] : communicators_) communicator.notices->give_up(0, reason);
}

bool Registry::is_repeated(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(communicators_.begin(), communicators_.end(),
                     [&](const auto& known) { return known.second.notices->is_repeated(reason); });
}

const Sharing& Registry::sharing(int key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = communicators_.find(key);
  if (found == communicators_.end()) throw Failure("MPI has been finalised, or was never initialised");
  return found->second.sharing;
}

void Registry::leave() {
  if (is_forked()) return;
  std::lock_guard<std::mutex> once(leaving_);
  decltype(meshes_) meshes;
  decltype(communicators_) communicators;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    meshes.swap(meshes_);
    communicators.swap(communicators_);
  }
  for (auto& [key, mesh] : meshes) mesh->team.stop();
  for (auto& [key, communicator] : communicators) communicator.notices->leave();
  for (auto& [key, mesh] : meshes) mesh->team.free();
  for (auto& [key, communicator] : communicators) MPI_Comm_free(&communicator.base);
}

}  // namespace decompops::mpi

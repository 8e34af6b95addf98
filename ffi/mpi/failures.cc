#include "mpi/failures.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "mpi/signals.h"

namespace decompops::mpi {
namespace {

// If the program handles SIGTERM itself, the first ranks say so when they have to wait for this long: a rank has died, or
// the program will end soon. Open MPI's launcher sends SIGKILL a quarter of a second after SIGTERM.
constexpr double kRequestSeconds = 0.05;
constexpr int kSpeakers = 4;

int place_of(int rank, const std::vector<int>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  if (found == ranks.end()) throw Failure("this rank is not in the mesh");
  return static_cast<int>(found - ranks.begin());
}

}  // namespace

Members::Members(std::vector<int> all, int rank)
    : ranks(std::move(all)),
      mesh(hash_bytes(ranks.data(), ranks.size() * sizeof(ranks[0]), 1) | 1),  // 0 stands for every mesh
      place(place_of(rank, ranks)) {}

Failures::Failures(Members members, std::shared_ptr<Notices> notices)
    : members_(std::move(members)), notices_(std::move(notices)) {}

void Failures::fail(const std::exception& error) noexcept {
  if (has_failed_) return;
  has_failed_ = true;
  const bool is_own = dynamic_cast<const Notice*>(&error) == nullptr;
  try {
    failure_ = "no memory";
    failure_ = error.what();
    if (is_own) notices_->give_up(members_.mesh, failure_, members_.ranks);
  } catch (const std::bad_alloc&) {  // the others notice when this rank ends
  }
}

// The thread that runs calls may not exist, so the calling thread tells the other ranks.
void Failures::refuse(const char* reason) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_refused_) return;
  is_refused_ = true;
  try {
    refusal_ = "no memory";
    refusal_ = reason;
    notices_->give_up(members_.mesh, refusal_, members_.ranks);
  } catch (const std::exception&) {  // the others notice when this rank ends
  }
}

void Failures::check_refusal() {
  if (!is_refused_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  throw Failure(refusal_);
}

// Throws only if another rank has failed.
void Failures::check_when_ready() {
  try {
    check();
  } catch (const std::bad_alloc&) {
  }
}

// Checks a wait that has lasted for a while. Throws if it cannot end.
void Failures::watch(const std::vector<int>& needed, Patience& patience, std::vector<int>& told) {
  if (is_ending_) throw Failure("this rank ends while the operator is under way");
  check_refusal();
  notices_->check(members_.mesh, members_.ranks, needed);
  auto rank = [&] { return "rank " + std::to_string(members_.ranks[members_.place]); };
  if (members_.place < kSpeakers && patience.seconds() > kRequestSeconds && take_late_request(kRequestSeconds)) {
    report(rank() + " got SIGTERM in " + here_ + ", where it waits for " + named(needed) +
           ": if the program does not end by itself, look for an earlier error of another rank");
  }
  if (!patience.is_over()) return;
  if (told.empty()) notices_->tell_waiting(members_.mesh, here_ + " of " + named(members_.ranks), told = needed);
  notices_->check_waiting(needed);
  const std::string seconds = std::to_string(std::lround(patience.seconds())) + " s";
  const std::string hosts = notices_->hosts_of(needed);
  if (patience.reports()) {
    report(rank() + " has waited " + seconds + " in " + here_ + " for " + named(needed) + hosts +
           (before_.empty() ? " (not seen yet)" : " (last seen in " + before_ + ")"));
  }
  if (patience.has_reached_limit()) {
    throw Failure("gave up after " + seconds + " of waiting for " + named(needed) + hosts +
                  "; if it is only slow, pass a larger `limit` to `MPI.initialize`" +
                  (hosts.empty() ? "" : "; if not, look whether this host and its network work"));
  }
}

}  // namespace decompops::mpi

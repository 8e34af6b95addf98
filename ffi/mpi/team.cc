#include "mpi/team.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sched.h>
#include <unistd.h>

namespace decompops::mpi {
namespace {

constexpr int kData = 1, kAnnouncement = 2;
// A call that no program of this rank contains yet can only come from one that is still to be compiled.
constexpr double kUnknownSeconds = 5;
// After a failure, how long messages that others are receiving already may take to arrive.
constexpr double kLastMessages = 2;

// Calls `body` without the lock, and takes it again in any case.
template <class Body>
auto unlocked(std::unique_lock<std::mutex>& lock, const Body& body) {
  struct Guard {
    std::unique_lock<std::mutex>& lock;
    ~Guard() { lock.lock(); }
  };
  lock.unlock();
  Guard guard{lock};
  return body();
}

template <std::size_t N>
void assign(char (&to)[N], const std::string& from) {
  std::strncpy(to, from.c_str(), N - 1);
  to[N - 1] = 0;
}

}  // namespace

Team::Team(MPI_Comm base, std::shared_ptr<Notices> notices, std::vector<int> ranks, IsCompiled is_compiled)
    : base_(base),
      notices_(std::move(notices)),
      ranks_(std::move(ranks)),
      hash_(hash_bytes(ranks_.data(), ranks_.size() * sizeof(ranks_[0]), 1) | 1),  // 0 means every mesh
      size_(static_cast<int>(ranks_.size())),
      is_compiled_(std::move(is_compiled)) {
  const auto found = std::find(ranks_.begin(), ranks_.end(), notices_->rank());
  if (found == ranks_.end()) throw Failure("this rank is not in the mesh");
  rank_ = static_cast<int>(found - ranks_.begin());
}

void Team::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
  finisher_.stop();
}

void Team::free() {
  // After a failure messages may still be under way: the communicator is left to MPI.
  if (communicator_ == MPI_COMM_NULL || failed_) return;
  for (Sent& sent : sent_) {
    MPI_Waitall(static_cast<int>(sent.requests.size()), sent.requests.data(), MPI_STATUSES_IGNORE);
  }
  sent_.clear();
  MPI_Comm_free(&communicator_);
}

// A communicator of the mesh's own, for which all of its ranks must come together. They say first that they have come: who
// waits for that, unlike who is in MPI_Comm_create_group, learns of notices.
void Team::connect() {
  const int tag = 16 + static_cast<int>(hash_ % 32000);
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  for (bool receive : {true, false}) {
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      const int rank = ranks_[other];
      MPI_Request& request = requests.emplace_back();
      peers.push_back(other);
      check(receive ? MPI_Irecv(nullptr, 0, MPI_CHAR, rank, tag, base_, &request)
                    : MPI_Isend(nullptr, 0, MPI_CHAR, rank, tag, base_, &request), "the meeting of a mesh's ranks");
    }
  }
  wait(requests, peers, static_cast<std::size_t>(size_ - 1));
  MPI_Group all, group;
  check(MPI_Comm_group(base_, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, size_, ranks_.data(), &group), "MPI_Group_incl");
  check(MPI_Comm_create_group(base_, group, tag, &communicator_), "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
}

// --- Order.

void Team::submit(std::shared_ptr<Call> call) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) throw Failure("MPI has been finalised");
    // First all that may fail. Once the call is in the queue it will run, and XLA may not have its buffers back before.
    try {
      finisher_.start();
      if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
      notices_->count(hash_, 1);
      waiting_.push_back(std::move(call));
    } catch (const std::exception& error) {
      refuse_locked(error.what());
      throw;
    }
  }
  changed_.notify_all();
}

void Team::refuse(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    refuse_locked(reason.c_str());
  }
  changed_.notify_all();
}

// The worker may not exist: the others are told from here.
void Team::refuse_locked(const char* reason) noexcept {
  if (refused_) return;
  refused_ = true;
  try {
    refusal_ = "no memory";
    refusal_ = reason;
    notices_->give_up(hash_, refusal_, ranks_);
  } catch (const std::exception&) {  // the others learn of it when this rank ends
  }
}

void Team::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait_for(lock, std::chrono::milliseconds(5), [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_ && !waiting_.empty()) fail("this rank ends while the operator is under way", true);
    if (!failed_ && !stopping_) {
      try {
        step(lock);
      } catch (const Notice& notice) {
        fail(notice.what(), false);
      } catch (const std::exception& error) {
        fail(error.what(), true);
      }
    }
    if (failed_) {
      for (; !waiting_.empty(); waiting_.pop_front()) finish(waiting_.front(), failure_);
    }
    if (stopping_) return;
  }
}

void Team::step(std::unique_lock<std::mutex>& lock) {
  if (refused_) throw Failure(refusal_);
  if (waiting_.empty()) return unlocked(lock, [&] { notices_->look(); });
  here_ = waiting_.front()->label;
  if (communicator_ == MPI_COMM_NULL) unlocked(lock, [&] { connect(); });
  if (const std::shared_ptr<Call> call = next(lock)) {
    execute(call, lock);
  } else {
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

// Takes the call that is to be run now; none if it has not been submitted yet.
std::shared_ptr<Call> Team::next(std::unique_lock<std::mutex>& lock) {
  auto found = waiting_.begin();
  if (rank_ == 0) {
    announce(**found);
  } else {
    if (!next_) {
      next_ = unlocked(lock, [&] { return receive_announcement(); });
      next_since_ = Clock::now();
    }
    found = std::find_if(waiting_.begin(), waiting_.end(),
                         [&](const auto& call) { return call->identity == next_->identity; });
  }
  if (found == waiting_.end()) {
    // A thread that waits here compiles nothing; another one may.
    const Identity& wanted = next_->identity;
    const auto same = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const auto& call) { return call->identity.thread == wanted.thread; });
    const bool hopeless = same != waiting_.end() && !is_compiled_(wanted.fingerprint);
    const double timeout = limits().timeout;
    if (seconds_since(next_since_) > (hopeless ? std::min(kUnknownSeconds, timeout) : timeout)) {
      throw Failure(different_programs(both_sides(same != waiting_.end() ? **same : *waiting_.front())));
    }
    return nullptr;
  }
  std::shared_ptr<Call> call = *found;
  waiting_.erase(found);
  next_.reset();
  return call;
}

// What the first rank has announced, and `call`, which is what this rank has instead.
std::string Team::both_sides(const Call& call) const {
  auto side = [](int rank, const std::string& label, const std::string& more) {
    return "rank " + std::to_string(rank) + " is in " + label + (more.empty() ? "" : " (" + more + ")");
  };
  auto sides = [&](const std::string& first, const std::string& mine) {
    return side(ranks_[0], next_->label, first) + ", " + side(ranks_[rank_], call.label, mine);
  };
  if (next_->label != call.label) return sides("", "");
  if (next_->details != call.details) return sides(next_->details, call.details);
  auto compiled = [](const Identity& identity) { return "compiled as number " + std::to_string(identity.occurrence + 1); };
  return sides(compiled(next_->identity), compiled(call.identity));
}

void Team::execute(const std::shared_ptr<Call>& call, std::unique_lock<std::mutex>& lock) {
  here_ = call->label;
  std::string error;
  try {
    unlocked(lock, [&] { call->run(); });
    before_ = here_;
  } catch (const Notice& notice) {
    error = notice.what();
    fail(error, false);
  } catch (const std::exception& failure) {
    error = failure.what();
    fail(error, true);
  }
  finish(call, error);
}

// XLA must hear of every call, even if there is no memory left to say it well.
void Team::finish(const std::shared_ptr<Call>& call, const std::string& error) noexcept {
  notices_->count(hash_, -1);
  try {
    const std::string text = error.empty() ? "" : call->label + ": " + error;
    finisher_.submit([call, text] { call->done(text); });
  } catch (const std::bad_alloc&) {
    call->done(error.empty() ? "" : "no memory");
  }
}

void Team::fail(const std::string& reason, bool own) noexcept {
  if (failed_) return;
  failed_ = true;
  try {
    failure_ = "no memory";
    failure_ = reason;
    if (own) notices_->give_up(hash_, reason, ranks_);
  } catch (const std::bad_alloc&) {  // the others learn of it when this rank ends
  }
}

void Team::announce(const Call& call) {
  while (!sent_.empty()) {
    int all = 0;
    check(MPI_Testall(static_cast<int>(sent_.front().requests.size()), sent_.front().requests.data(), &all,
                      MPI_STATUSES_IGNORE), "MPI_Testall");
    if (!all) break;
    sent_.pop_front();
  }
  Sent& sent = sent_.emplace_back();
  sent.announcement.identity = call.identity;
  assign(sent.announcement.label, call.label);
  assign(sent.announcement.details, call.details);
  sent.requests.reserve(size_);
  for (int other = 1; other < size_; ++other) {
    check(MPI_Isend(&sent.announcement, sizeof(Announcement), MPI_BYTE, other, kAnnouncement,
                    communicator_, &sent.requests.emplace_back()), "MPI_Isend");
  }
}

Team::Announcement Team::receive_announcement() {
  Announcement announcement;
  std::vector<MPI_Request> requests(1);
  const std::vector<int> peers{0};
  check(MPI_Irecv(&announcement, sizeof(announcement), MPI_BYTE, 0, kAnnouncement, communicator_, &requests[0]), "MPI_Irecv");
  wait(requests, peers, 1);
  return announcement;
}

// --- Messages.

void Team::exchange(const Exchange& exchange, const Memory& memory) {
  // A rank that has given up may have freed what it has not sent.
  notices_->check(hash_, ranks_, {});
  const std::size_t count = exchange.receives.size() + exchange.sends.size();
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  requests.reserve(count);
  peers.reserve(count);
  std::size_t receives = 0;
  auto start = [&](const Piece& piece) { return memory[piece.buffer] + piece.offset; };
  try {
    for (const Message& message : exchange.receives) {
      const Datatype type(message.piece, exchange.element, exchange.order);
      MPI_Request request;
      check(MPI_Irecv(start(message.piece), 1, type, message.peer, kData, communicator_, &request), "MPI_Irecv");
      requests.push_back(request);
      peers.push_back(message.peer);
      ++receives;
    }
    for (const Message& message : exchange.sends) {
      const Datatype type(message.piece, exchange.element, exchange.order);
      MPI_Request request;
      check(MPI_Isend(start(message.piece), 1, type, message.peer, kData, communicator_, &request), "MPI_Isend");
      requests.push_back(request);
      peers.push_back(message.peer);
      ++messages_;
      sent_bytes_ += message.piece.region.volume() * exchange.element;
    }
  } catch (const std::exception& error) {
    fail(error.what(), true);
    withdraw(requests, receives);
    throw;
  }
  wait(requests, peers, receives);
}

// After this nothing is written to what the requests were to receive, and what was to be sent is not read by a rank that
// was receiving it already. Later ones look for notices first, and this rank has given one, or has had it.
void Team::withdraw(std::vector<MPI_Request>& requests, std::size_t receives) noexcept {
  for (std::size_t i = 0; i < receives; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&requests[i]);
    MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
  }
  const int sends = static_cast<int>(requests.size() - receives);
  const auto start = Clock::now();
  for (int all = 0; !all && seconds_since(start) < kLastMessages; usleep(50)) {
    if (MPI_Testall(sends, requests.data() + receives, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
  }
  for (std::size_t i = receives; i < requests.size(); ++i) {
    if (requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests[i]);
  }
}

void Team::wait(std::vector<MPI_Request>& requests, const std::vector<int>& peers, std::size_t receives) {
  const int count = static_cast<int>(requests.size());
  Patience patience;
  std::vector<int> told;
  try {
    for (Index spins = 1;; ++spins) {
      int all = 0;
      check(MPI_Testall(count, requests.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
      if (all) break;
      if (spins % 256 == 0) watch(requests, peers, patience, told);
      // Others may need this core, above all where there are more ranks than cores.
      if (spins > 200) sched_yield();
      if (spins > 3000) usleep(50);
    }
    notices_->tell_waiting(hash_, "", told);
  } catch (const Notice& notice) {
    fail(notice.what(), false);
    withdraw(requests, receives);
    throw;
  } catch (const std::exception& error) {
    fail(error.what(), true);
    withdraw(requests, receives);
    throw;
  }
}

// Looks after a wait that has lasted for a while. Throws where it is in vain.
void Team::watch(const std::vector<MPI_Request>& requests, const std::vector<int>& peers, Patience& patience,
                 std::vector<int>& told) {
  if (stopping_) throw Failure("this rank ends while the operator is under way");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (refused_) throw Failure(refusal_);
  }
  const std::vector<int> needed = unfinished(requests, peers);
  notices_->check(hash_, ranks_, needed);
  if (!patience.is_over()) return;
  if (told.empty()) notices_->tell_waiting(hash_, here_ + " of " + named(ranks_), told = needed);
  notices_->check_waiting(needed);
  const std::string seconds = std::to_string(std::lround(patience.seconds())) + " s";
  if (patience.reports()) {
    report("rank " + std::to_string(ranks_[rank_]) + " has waited " + seconds + " in " + here_ + " for " + named(needed) +
           (before_.empty() ? " (not seen yet)" : " (last seen in " + before_ + ")"));
  }
  if (patience.has_reached_limit()) throw Failure("gave up after " + seconds + " of waiting for " + named(needed));
}

// The ranks whose requests are not done.
std::vector<int> Team::unfinished(const std::vector<MPI_Request>& requests, const std::vector<int>& peers) const {
  std::vector<int> needed;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    int done = 0;
    if (requests[i] != MPI_REQUEST_NULL) {
      check(MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE), "MPI_Request_get_status");
      const int rank = ranks_[peers[i]];
      if (!done && std::find(needed.begin(), needed.end(), rank) == needed.end()) needed.push_back(rank);
    }
  }
  return needed;
}

}  // namespace decompops::mpi

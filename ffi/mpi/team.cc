#include "mpi/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <sched.h>
#include <unistd.h>

namespace decompops::mpi {
namespace {

constexpr int kData = 1, kAnnouncement = 2;
// A call that no program of this rank contains yet can only come from one that is still to be compiled.
constexpr double kUnknownSeconds = 5;
std::atomic<double> timeout{60};

using Clock = std::chrono::steady_clock;

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

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string joined(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

void set_timeout(double seconds) { timeout = seconds; }

// --- Threads.

void Runner::submit(std::function<void()> function) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(std::move(function));
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  changed_.notify_one();
}

void Runner::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    auto function = std::move(waiting_.front());
    waiting_.pop_front();
    unlocked(lock, function);
  }
}

void Runner::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (worker_.joinable()) worker_.join();
}

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
  if (communicator_ == MPI_COMM_NULL || !failure_.empty()) return;
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
    waiting_.push_back(std::move(call));
    notices_->count(hash_, 1);
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  }
  changed_.notify_all();
}

void Team::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait_for(lock, std::chrono::milliseconds(5), [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    try {
      if (waiting_.empty()) {
        unlocked(lock, [&] { notices_->look(); });
      } else if (failure_.empty()) {
        here_ = waiting_.front()->label;
        if (communicator_ == MPI_COMM_NULL) unlocked(lock, [&] { connect(); });
        if (std::shared_ptr<Call> call = next(lock)) {
          execute(call, lock);
        } else {
          changed_.wait_for(lock, std::chrono::milliseconds(20));
        }
      }
    } catch (const Notice& notice) {
      failure_ = notice.what();
    } catch (const std::exception& error) {
      give_up(error.what());
    }
    if (failure_.empty()) continue;
    for (auto& call : waiting_) finish(call, call->label + ": " + failure_);
    waiting_.clear();
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
    const double limit = is_compiled_(next_->identity.fingerprint) ? timeout.load() : std::min<double>(kUnknownSeconds, timeout);
    if (seconds_since(next_since_) > limit) {
      give_up(different_programs("rank 0 of the mesh is at " + std::string(next_->label) + ", rank " + std::to_string(rank_) +
                                 " at " + waiting_.front()->label));
    }
    return nullptr;
  }
  std::shared_ptr<Call> call = *found;
  waiting_.erase(found);
  next_.reset();
  return call;
}

void Team::execute(const std::shared_ptr<Call>& call, std::unique_lock<std::mutex>& lock) {
  here_ = call->label;
  std::string error;
  try {
    unlocked(lock, [&] { call->run(); });
  } catch (const Notice& notice) {
    failure_ = error = call->label + ": " + notice.what();
  } catch (const std::exception& failure) {
    give_up(error = call->label + ": " + failure.what());
  }
  finish(call, error);
}

void Team::finish(std::shared_ptr<Call> call, const std::string& error) {
  notices_->count(hash_, -1);
  finisher_.submit([call, error] { call->done(error); });
}

void Team::give_up(const std::string& reason) {
  failure_ = reason;
  notices_->give_up(hash_, reason, ranks_);
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
  std::strncpy(sent.announcement.label, call.label.c_str(), sizeof(sent.announcement.label) - 1);
  sent.announcement.label[sizeof(sent.announcement.label) - 1] = 0;
  for (int other = 1; other < size_; ++other) {
    check(MPI_Isend(&sent.announcement, sizeof(Announcement), MPI_BYTE, other, kAnnouncement,
                    communicator_, &sent.requests.emplace_back()), "MPI_Isend");
  }
}

Team::Announcement Team::receive_announcement() {
  Announcement announcement;
  std::vector<MPI_Request> requests(1);
  check(MPI_Irecv(&announcement, sizeof(announcement), MPI_BYTE, 0, kAnnouncement, communicator_, &requests[0]), "MPI_Irecv");
  wait(requests, {0}, 1);
  return announcement;
}

// --- Messages.

void Team::exchange(const Exchange& exchange, const Memory& memory) {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
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
  } catch (...) {
    withdraw(requests, receives);
    throw;
  }
  wait(requests, peers, receives);
}

// After this nothing is written to what the requests were to receive. What was to be sent may still be read, but
// only by a rank that asks for it, which after a failure none does.
void Team::withdraw(std::vector<MPI_Request>& requests, std::size_t receives) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    if (i < receives) {
      MPI_Cancel(&requests[i]);
      MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
    } else {
      MPI_Request_free(&requests[i]);
    }
  }
}

void Team::wait(std::vector<MPI_Request>& requests, const std::vector<int>& peers, std::size_t receives) {
  const int count = static_cast<int>(requests.size());
  const auto start = Clock::now();
  std::vector<int> told;
  try {
    for (Index spins = 1;; ++spins) {
      int all = 0;
      check(MPI_Testall(count, requests.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
      if (all) break;
      if (spins % 256 == 0) {
        const std::vector<int> needed = unfinished(requests, peers);
        notices_->check(hash_, ranks_, needed);
        if (seconds_since(start) > timeout) {
          if (told.empty()) notices_->tell_waiting(hash_, here_ + " of ranks " + joined(ranks_), told = needed);
          notices_->check_waiting(needed);
        }
      }
      // Others may need this core, above all where there are more ranks than cores.
      if (spins > 200) sched_yield();
      if (spins > 3000) usleep(50);
    }
  } catch (...) {
    withdraw(requests, receives);
    throw;
  }
  notices_->tell_waiting(hash_, "", told);
}

// The ranks whose requests are not done.
std::vector<int> Team::unfinished(const std::vector<MPI_Request>& requests, const std::vector<int>& peers) const {
  std::vector<int> needed;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    int done = 0;
    if (requests[i] != MPI_REQUEST_NULL) {
      check(MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE), "MPI_Request_get_status");
      if (!done) needed.push_back(ranks_[peers[i]]);
    }
  }
  return needed;
}

}  // namespace decompops::mpi

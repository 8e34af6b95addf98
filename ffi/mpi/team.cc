#include "mpi/team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <sched.h>
#include <unistd.h>

namespace decompops::mpi {
namespace {

constexpr int kData = 1, kAnnouncement = 2, kGaveUp = 3, kLeft = 4;
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

}  // namespace

void set_timeout(double seconds) { timeout = seconds; }

Team::Team(MPI_Comm base, const std::vector<int>& ranks, int tag) {
  MPI_Group all, group;
  check(MPI_Comm_group(base, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &group), "MPI_Group_incl");
  // Collective over the ranks of this mesh only.
  check(MPI_Comm_create_group(base, group, tag, &data_), "MPI_Comm_create_group");
  check(MPI_Comm_dup(data_, &control_), "MPI_Comm_dup");
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  check(MPI_Comm_rank(data_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(data_, &size_), "MPI_Comm_size");
}

Team::~Team() { stop(); }

void Team::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

void Team::register_site(std::uint64_t fingerprint) {
  std::lock_guard<std::mutex> lock(mutex_);
  sites_.push_back(fingerprint);
}

// --- Order.

void Team::submit(std::shared_ptr<Call> call) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failure_.empty()) {
    const std::string reason = failure_;
    lock.unlock();
    return call->done(call->label + ": " + reason);
  }
  waiting_.push_back(std::move(call));
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  lock.unlock();
  changed_.notify_all();
}

void Team::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait_for(lock, std::chrono::milliseconds(5), [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    if (waiting_.empty()) {
      // MPI may still have to send what others wait for, and does so within calls to it only.
      int arrived;
      MPI_Iprobe(MPI_ANY_SOURCE, kGaveUp, control_, &arrived, MPI_STATUS_IGNORE);
      continue;
    }
    if (failure_.empty()) {
      try {
        if (std::shared_ptr<Call> call = next(lock)) {
          execute(*call, lock);
        } else {
          changed_.wait_for(lock, std::chrono::milliseconds(20));
        }
      } catch (const std::exception& error) {
        if (failure_.empty()) failure_ = error.what();
      }
    }
    if (!failure_.empty()) fail_waiting();
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
    const bool known = std::count(sites_.begin(), sites_.end(), next_->identity.fingerprint) > 0;
    const double limit = known ? timeout.load() : std::min<double>(kUnknownSeconds, timeout);
    if (seconds_since(next_since_) > limit) {
      const std::string reason = mismatch(*waiting_.front());
      unlocked(lock, [&] { give_up(reason); });
    }
    return nullptr;
  }
  std::shared_ptr<Call> call = *found;
  waiting_.erase(found);
  next_.reset();
  return call;
}

void Team::execute(Call& call, std::unique_lock<std::mutex>& lock) {
  unlocked(lock, [&] {
    std::string reason;
    try {
      call.run();
    } catch (const std::exception& error) {
      reason = call.label + ": " + error.what();
      give_up(reason);
    }
    call.done(reason);
  });
}

std::string Team::mismatch(const Call& call) const {
  return "the ranks of the mesh run different programs: rank 0 is at " + std::string(next_->label) + ", rank " +
         std::to_string(rank_) + " at " + call.label +
         ". All ranks must call the same operators on the same shapes, dtypes and meshes, and compile the same programs.";
}

void Team::fail_waiting() {
  auto calls = std::move(waiting_);
  waiting_.clear();
  for (auto& call : calls) call->done(call->label + ": " + failure_);
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
    check(MPI_Isend(&sent.announcement, sizeof(Announcement), MPI_BYTE, other, kAnnouncement, control_,
                    &sent.requests.emplace_back()), "MPI_Isend");
  }
}

Team::Announcement Team::receive_announcement() {
  Announcement announcement;
  MPI_Request request;
  check(MPI_Irecv(&announcement, sizeof(announcement), MPI_BYTE, 0, kAnnouncement, control_, &request), "MPI_Irecv");
  try {
    wait([&] {
      int arrived = 0;
      check(MPI_Test(&request, &arrived, MPI_STATUS_IGNORE), "MPI_Test");
      return arrived != 0;
    });
  } catch (...) {
    MPI_Cancel(&request);
    MPI_Request_free(&request);
    throw;
  }
  return announcement;
}

// --- Messages.

void Team::exchange(const Exchange& exchange, const Memory& memory) {
  std::vector<MPI_Request> requests;
  auto start = [&](const Piece& piece) { return memory[piece.buffer] + piece.offset; };
  for (const Message& message : exchange.receives) {
    const Datatype type(message.piece, exchange.element, exchange.order);
    check(MPI_Irecv(start(message.piece), 1, type, message.peer, kData, data_, &requests.emplace_back()), "MPI_Irecv");
  }
  for (const Message& message : exchange.sends) {
    const Datatype type(message.piece, exchange.element, exchange.order);
    check(MPI_Isend(start(message.piece), 1, type, message.peer, kData, data_, &requests.emplace_back()), "MPI_Isend");
    ++messages_;
    sent_bytes_ += message.piece.region.volume() * exchange.element;
  }
  wait([&] {
    int all = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
    return all != 0;
  });
}

template <class Ready>
void Team::wait(const Ready& ready) {
  for (Index spins = 1; !ready(); ++spins) {
    if (spins % 256 == 0) look_for_notices();
    // Others may need this core, above all where there are more ranks than cores.
    if (spins > 200) sched_yield();
    if (spins > 3000) usleep(50);
  }
}

// --- Failures.

void Team::look_for_notices() {
  int arrived = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, kGaveUp, control_, &arrived, &status), "MPI_Iprobe");
  if (arrived) {
    int length = 0;
    MPI_Get_count(&status, MPI_CHAR, &length);
    std::string reason(length, ' ');
    check(MPI_Recv(reason.data(), length, MPI_CHAR, status.MPI_SOURCE, kGaveUp, control_, MPI_STATUS_IGNORE),
          "MPI_Recv");
    throw Failure("rank " + std::to_string(status.MPI_SOURCE) + " gave up: " + reason);
  }
  check(MPI_Iprobe(MPI_ANY_SOURCE, kLeft, control_, &arrived, &status), "MPI_Iprobe");
  if (arrived) {
    throw Failure("rank " + std::to_string(status.MPI_SOURCE) +
                  " has ended its program, while this rank waits for it here");
  }
}

void Team::give_up(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = reason;
  }
  for (int other = 0; other < size_; ++other) {
    MPI_Request request;
    if (other == rank_) continue;
    // The text must outlive the message; there are few of these, and then no more.
    auto text = new std::string(reason);
    MPI_Isend(text->data(), static_cast<int>(text->size()), MPI_CHAR, other, kGaveUp, control_, &request);
    MPI_Request_free(&request);
  }
}

void Team::leave() {
  stop();
  std::vector<MPI_Request> requests;
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    MPI_Isend(nullptr, 0, MPI_CHAR, other, kLeft, control_, &requests.emplace_back());
    MPI_Irecv(nullptr, 0, MPI_CHAR, other, kLeft, control_, &requests.emplace_back());
  }
  for (Sent& sent : sent_) requests.insert(requests.end(), sent.requests.begin(), sent.requests.end());
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  sent_.clear();
  // After a failure messages may still be under way: these communicators are left to MPI.
  if (failure_.empty()) {
    MPI_Comm_free(&control_);
    MPI_Comm_free(&data_);
  }
  failure_ = "MPI has been finalised";
}

}  // namespace decompops::mpi

#include "mpi/team.h"

#include <algorithm>
#include <cstring>

namespace decompops::mpi {
namespace {

// How long a rank waits for an announced call that none of its programs contains. Another thread may still compile a
// program that contains the call.
constexpr double kUnknownSeconds = 5;
// How long a quick call may wait for other ranks in the thread that submits it. Waking another thread takes about as
// long.
constexpr double kQuickSeconds = 1e-4;

// Calls `body` without the lock, and then takes the lock again, even if `body` throws.
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

}  // namespace

Team::Team(MPI_Comm base, std::shared_ptr<Notices> notices, std::vector<int> ranks, const std::vector<int>& node,
           IsCompiled is_compiled)
    : base_(base),
      notices_(std::move(notices)),
      ranks_(std::move(ranks)),
      hash_(hash_bytes(ranks_.data(), ranks_.size() * sizeof(ranks_[0]), 1) | 1),  // 0 stands for every mesh
      size_(static_cast<int>(ranks_.size())),
      is_compiled_(std::move(is_compiled)) {
  const auto found = std::find(ranks_.begin(), ranks_.end(), notices_->rank());
  if (found == ranks_.end()) throw Failure("this rank is not in the mesh");
  rank_ = static_cast<int>(found - ranks_.begin());
  for (int place = 0; place < size_; ++place) {
    const bool shares = std::find(node.begin(), node.end(), ranks_[place]) != node.end();
    if (shares && place != rank_) sharing_.push_back(place);
  }
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
  withdraw(listening_);
  // After a failure, messages may still be under way, so the communicator is not freed.
  if (communicator_ == MPI_COMM_NULL || failed_) return;
  for (Sent& sent : sent_) {
    MPI_Waitall(static_cast<int>(sent.requests.size()), sent.requests.data(), MPI_STATUSES_IGNORE);
  }
  sent_.clear();
  MPI_Comm_free(&communicator_);
}

// --- Order.

void Team::submit(std::shared_ptr<Call> call) {
  const bool is_quick = call->is_quick;
  call->submitter = std::this_thread::get_id();
  std::unique_lock<std::mutex> lock(mutex_);
  if (stopping_) throw Failure("MPI has been finalised");
  // Everything that may fail comes first. Once the call is in the queue it will run, and XLA must not get its buffers
  // back before the call has ended.
  try {
    finisher_.start();
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    notices_->count(hash_, 1);
    waiting_.push_back(std::move(call));
  } catch (const std::exception& error) {
    refuse_locked(error.what());
    throw;
  }
  const bool is_alone = waiting_.size() == 1 && !current_ && !is_led_ && communicator_ != MPI_COMM_NULL;
  if (is_quick && is_alone && !failed_) {
    lead(lock, kQuickSeconds);
    if (waiting_.empty() && !current_) return;
  }
  lock.unlock();
  changed_.notify_all();
}

void Team::refuse(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    refuse_locked(reason.c_str());
  }
  changed_.notify_all();
}

// The worker thread may not exist, so the calling thread tells the other ranks.
void Team::refuse_locked(const char* reason) noexcept {
  if (refused_) return;
  refused_ = true;
  try {
    refusal_ = "no memory";
    refusal_ = reason;
    notices_->give_up(hash_, refusal_, ranks_);
  } catch (const std::exception&) {  // the others notice when this rank ends
  }
}

void Team::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait_for(lock, std::chrono::milliseconds(5),
                      [&] { return !is_led_ && (stopping_ || current_ || !waiting_.empty()); });
    if (is_led_) continue;
    if (stopping_ && (current_ || !waiting_.empty())) fail("this rank ends while the operator is under way", true);
    if (!failed_ && !stopping_) lead(lock, kForever);
    if (failed_) {
      if (current_) end_current(lock, failure_);
      for (; !waiting_.empty(); waiting_.pop_front()) end(*waiting_.front(), failure_);
    }
    if (stopping_) return;
  }
}

// Runs the next call in this thread.
void Team::lead(std::unique_lock<std::mutex>& lock, double longest) {
  is_led_ = true;
  try {
    step(lock, longest);
  } catch (const Notice& notice) {
    fail(notice.what(), false);
  } catch (const std::exception& error) {
    fail(error.what(), true);
  }
  is_led_ = false;
}

void Team::step(std::unique_lock<std::mutex>& lock, double longest) {
  if (refused_) throw Failure(refusal_);
  if (!current_ && waiting_.empty()) {
    return unlocked(lock, [&] {
      notices_->look();
      listen_for_announcement();
    });
  }
  if (!current_) {
    here_ = waiting_.front()->label;
    if (communicator_ == MPI_COMM_NULL) unlocked(lock, [&] { connect(); });
    current_ = next(lock, longest);
  }
  if (current_) {
    execute(lock, longest);
  } else if (longest == kForever) {
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

// Returns the call to run now, and removes it from the queue. Returns null if no call has been announced in time, or if
// this rank has not submitted the announced call yet.
std::shared_ptr<Call> Team::next(std::unique_lock<std::mutex>& lock, double longest) {
  auto found = waiting_.begin();
  if (rank_ == 0) {
    announce(announcement_of(**found));
  } else {
    unlocked(lock, [&] {
      listen_for_announcement();
      if (!next_ && wait(listening_, longest)) listen_for_announcement();
    });
    if (!next_) return nullptr;
    found = std::find_if(waiting_.begin(), waiting_.end(),
                         [&](const auto& call) { return call->identity == next_->identity; });
  }
  if (found == waiting_.end()) {
    // A thread whose call waits here compiles nothing meanwhile. Another thread may still compile the announced call.
    const Identity& wanted = next_->identity;
    const auto same = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const auto& call) { return call->identity.thread == wanted.thread; });
    const bool hopeless = same != waiting_.end() && !is_compiled_(wanted);
    const double timeout = limits().timeout;
    if (seconds_since(next_since_) > (hopeless ? std::min(kUnknownSeconds, timeout) : timeout)) {
      throw Failure(
          different_programs(both_sides(announcement_of(same != waiting_.end() ? **same : *waiting_.front()))));
    }
    return nullptr;
  }
  std::shared_ptr<Call> call = *found;
  waiting_.erase(found);
  next_.reset();
  return call;
}

// The call that the first rank has announced, and the call of this rank.
std::string Team::both_sides(const Announcement& mine) const {
  const std::string label = mine.label, details = mine.details;
  auto side = [](int rank, const std::string& label, const std::string& more) {
    return "rank " + std::to_string(rank) + " is in " + label + (more.empty() ? "" : " (" + more + ")");
  };
  auto sides = [&](const std::string& first, const std::string& second) {
    return side(ranks_[0], next_->label, first) + ", " + side(ranks_[rank_], label, second);
  };
  if (next_->label != label) return sides("", "");
  if (next_->details != details) return sides(next_->details, details);
  auto compiled = [](const Identity& identity) {
    return "compiled as number " + std::to_string(identity.occurrence + 1);
  };
  return sides(compiled(next_->identity), compiled(mine.identity));
}

void Team::execute(std::unique_lock<std::mutex>& lock, double longest) {
  here_ = current_->label;
  std::string error;
  try {
    if (!unlocked(lock, [&] { return current_->run(longest); })) return;
    before_ = here_;
  } catch (const Notice& notice) {
    error = notice.what();
    fail(error, false);
  } catch (const std::exception& failure) {
    error = failure.what();
    fail(error, true);
  }
  end_current(lock, error);
}

void Team::end_current(std::unique_lock<std::mutex>& lock, const std::string& error) noexcept {
  // XLA takes the memory of the call back, so no exchange may use it any more.
  for (; !under_way_.empty(); under_way_.pop_front()) withdraw(under_way_.front());
  const std::shared_ptr<Call> call = std::move(current_);
  current_.reset();
  unlocked(lock, [&] { end(*call, error); });
}

// XLA must learn that a call has ended, even if no memory is left for the text of the error.
void Team::end(const Call& call, const std::string& error) noexcept {
  notices_->count(hash_, -1);
  try {
    const std::string text = error.empty() ? "" : call.label + ": " + error;
    if (call.submitter == std::this_thread::get_id()) return call.done(text);
    finisher_.submit([done = call.done, text] { done(text); });
  } catch (const std::bad_alloc&) {
    call.done(error.empty() ? "" : "no memory");
  }
}

void Team::fail(const std::string& reason, bool own) noexcept {
  if (failed_) return;
  failed_ = true;
  try {
    failure_ = "no memory";
    failure_ = reason;
    if (own) notices_->give_up(hash_, reason, ranks_);
  } catch (const std::bad_alloc&) {  // the others notice when this rank ends
  }
}

}  // namespace decompops::mpi

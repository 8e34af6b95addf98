#include "mpi/team.h"

namespace decompops::mpi {
namespace {

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
           Order::IsCompiled is_compiled)
    : failures_(Members(std::move(ranks), notices->rank()), notices),
      messages_(base, failures_),
      memory_(failures_, node),
      order_(failures_, messages_, std::move(is_compiled)) {}

void Team::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failures_.end();
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
  finisher_.stop();
}

void Team::free() {
  order_.free();
  messages_.free();
}

void Team::submit(std::shared_ptr<Call> call) {
  const bool is_quick = call->is_quick;
  call->submitter = std::this_thread::get_id();
  std::unique_lock<std::mutex> lock(mutex_);
  if (failures_.is_ending()) throw Failure("MPI has been finalised");
  // Everything that may fail comes first. Once the call is in the queue it will run, and XLA must not get its buffers
  // back before the call has ended.
  try {
    finisher_.start();
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    failures_.count(1);
    waiting_.push_back(std::move(call));
  } catch (const std::exception& error) {
    failures_.refuse(error.what());
    throw;
  }
  const bool is_alone = waiting_.size() == 1 && !current_ && !is_led_ && messages_.is_connected();
  if (is_quick && is_alone && !failures_.has_failed()) {
    lead(lock, kQuickSeconds);
    if (waiting_.empty() && !current_) return;
  }
  lock.unlock();
  changed_.notify_all();
}

void Team::refuse(const std::string& reason) {
  failures_.refuse(reason.c_str());
  changed_.notify_all();
}

void Team::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait_for(lock, std::chrono::milliseconds(5),
                      [&] { return !is_led_ && (failures_.is_ending() || current_ || !waiting_.empty()); });
    if (is_led_) continue;
    const bool is_ending = failures_.is_ending();
    if (is_ending && (current_ || !waiting_.empty())) {
      failures_.fail(Failure("this rank ends while the operator is under way"));
    }
    if (!failures_.has_failed() && !is_ending) lead(lock, kForever);
    if (failures_.has_failed()) {
      if (current_) end_current(lock, failures_.failure());
      for (; !waiting_.empty(); waiting_.pop_front()) end(*waiting_.front(), failures_.failure());
    }
    if (is_ending) return;
  }
}

// Runs the next call in this thread.
void Team::lead(std::unique_lock<std::mutex>& lock, double longest) {
  is_led_ = true;
  try {
    step(lock, longest);
  } catch (const std::exception& error) {
    failures_.fail(error);
  }
  is_led_ = false;
}

void Team::step(std::unique_lock<std::mutex>& lock, double longest) {
  failures_.check_refusal();
  if (!current_ && waiting_.empty()) {
    return unlocked(lock, [&] {
      failures_.look();
      order_.listen();
    });
  }
  if (!current_) {
    failures_.enter(waiting_.front()->label);
    if (!messages_.is_connected()) {
      unlocked(lock, [&] {
        messages_.connect();
        memory_.connect(messages_.communicator());
      });
    }
    if (order_.decides() || unlocked(lock, [&] { return order_.wait(longest); })) current_ = order_.take(waiting_);
  }
  if (current_) {
    execute(lock, longest);
  } else if (longest == kForever) {
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

void Team::execute(std::unique_lock<std::mutex>& lock, double longest) {
  failures_.enter(current_->label);
  std::string error;
  try {
    if (!unlocked(lock, [&] { return current_->run(longest); })) return;
    failures_.leave();
  } catch (const std::exception& failure) {
    error = failure.what();
    failures_.fail(failure);
  }
  end_current(lock, error);
}

void Team::end_current(std::unique_lock<std::mutex>& lock, const std::string& error) noexcept {
  messages_.withdraw();  // XLA takes the memory of the call back, so no exchange may use it any more
  const std::shared_ptr<Call> call = std::move(current_);
  current_.reset();
  unlocked(lock, [&] { end(*call, error); });
}

// XLA must learn that a call has ended, even if no memory is left for the text of the error.
void Team::end(const Call& call, const std::string& error) noexcept {
  failures_.count(-1);
  try {
    if (call.submitter == std::this_thread::get_id()) return call.done(error);
    finisher_.submit([done = call.done, error] { done(error); });
  } catch (const std::bad_alloc&) {
    call.done(error.empty() ? "" : "no memory");
  }
}

}  // namespace decompops::mpi

#include "cpu/pool.h"

#include <chrono>
#include <map>
#include <memory>

namespace decompops {
namespace {

// A thread spins for this time before it sleeps, because a step of a small grid takes less time than waking a thread.
constexpr std::chrono::microseconds kSpin{20};

template <class Condition>
bool spin_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

Pool& Pool::of(int threads) {
  static std::mutex mutex;
  static auto& pools = *new std::map<int, std::unique_ptr<Pool>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& pool = pools[threads];
  if (!pool) pool.reset(new Pool(threads));
  return *pool;
}

Pool::Pool(int threads) {
  try {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { serve(thread); });
  } catch (const std::exception&) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      ++round_;
    }
    begun_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    throw;
  }
}

void Pool::run(int tasks, const std::function<void(int, int)>& body) {
  if (workers_.empty() || tasks == 1) {
    for (int task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  std::lock_guard<std::mutex> once(run_mutex_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_ = tasks;
    body_ = &body;
    failure_ = nullptr;
    next_ = 0;
    busy_ = static_cast<int>(workers_.size());
    ++round_;
  }
  begun_.notify_all();
  take(0);
  if (!spin_until([this] { return busy_ == 0; })) {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return busy_ == 0; });
  }
  if (failure_) std::rethrow_exception(failure_);
}

void Pool::serve(int thread) {
  for (std::uint64_t seen = 0;;) {
    auto is_new = [&] { return round_ != seen; };
    if (!spin_until(is_new)) {
      std::unique_lock<std::mutex> lock(mutex_);
      begun_.wait(lock, is_new);
    }
    if (stopping_) return;
    seen = round_;
    take(thread);
    if (--busy_ == 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_.notify_one();
    }
  }
}

void Pool::take(int thread) {
  for (int task = next_++; task < tasks_; task = next_++) {
    try {
      (*body_)(task, thread);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      failure_ = std::current_exception();
    }
  }
}

}  // namespace decompops

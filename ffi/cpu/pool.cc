#include "cpu/pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

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

int cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

Pool& Pool::get() {
  static Pool& pool = *new Pool;
  return pool;
}

Pool::Pool() : most_threads_(cores()) {}

void Pool::run(int tasks, int threads, const std::function<void(int, int)>& body) {
  const int workers = std::min({threads, most_threads_, tasks}) - 1;
  if (workers < 1) {
    for (int task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  std::lock_guard<std::mutex> once(run_mutex_);
  start(workers);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_ = tasks;
    body_ = &body;
    next_ = 0;
    busy_ = workers;
    ++round_;
    for (int i = 0; i < workers; ++i) workers_[i]->round = round_;
  }
  for (int i = 0; i < workers; ++i) workers_[i]->begun.notify_one();
  take(0);
  if (!spin_until([this] { return busy_ == 0; })) {
    std::unique_lock<std::mutex> lock(mutex_);
    ended_.wait(lock, [this] { return busy_ == 0; });
  }
  // The pool keeps no exception, because the next caller would destroy it in another thread.
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Starts threads until there are `workers` of them.
void Pool::start(int workers) {
  while (static_cast<int>(workers_.size()) < workers) {
    auto worker = std::make_unique<Worker>();
    worker->round = round_;
    std::thread([this, thread = static_cast<int>(workers_.size()) + 1, own = worker.get(), seen = round_] {
      serve(thread, *own, seen);
    }).detach();
    workers_.push_back(std::move(worker));
  }
}

void Pool::serve(int thread, Worker& worker, std::uint64_t seen) {
  while (true) {
    auto is_new = [&] { return worker.round != seen; };
    if (!spin_until(is_new)) {
      std::unique_lock<std::mutex> lock(mutex_);
      worker.begun.wait(lock, is_new);
    }
    seen = worker.round;
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
      if (!failure_) failure_ = std::current_exception();
    }
  }
}

}  // namespace decompops

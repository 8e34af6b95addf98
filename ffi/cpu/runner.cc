#include "cpu/runner.h"

namespace decompops {

void Runner::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
}

void Runner::submit(std::function<void()> function) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(function));
  }
  changed_.notify_one();
}

void Runner::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto function = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    function();
    lock.lock();
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

}  // namespace decompops

// A thread that runs functions one after the other.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace decompops {

class Runner {
 public:
  ~Runner() { stop(); }
  // Starts the thread, unless it runs already. Throws if the system cannot start a thread.
  void start();
  // The thread must have been started. `function` must not throw.
  void submit(std::function<void()> function);
  // Runs all submitted functions, and ends the thread.
  void stop();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::deque<std::function<void()>> waiting_;
  std::thread worker_;
};

}  // namespace decompops

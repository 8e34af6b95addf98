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
  // Starts the thread, unless it runs already. Throws where the system has no thread for it.
  void start();
  // The thread must have been started. `function` must not throw.
  void submit(std::function<void()> function);
  // Runs what has been submitted, and ends the thread.
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

// Threads that carry out the tasks of one piece of work together.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace decompops {

class Pool {
 public:
  // The pool of this process. It is never destroyed, because a forked child has the memory of the pool but not its
  // threads.
  static Pool& get();

  // The most threads that do work at the same time: the cores that this process may use.
  int most_threads() const { return most_threads_; }

  // Calls `body(task, thread)` for each task from 0 to `tasks` - 1. At most `threads` threads share the tasks, the
  // calling thread among them; `thread` is from 0 to `threads` - 1. If a task throws, its exception is thrown after all
  // tasks have ended. Also throws if the system cannot start the threads.
  void run(int tasks, int threads, const std::function<void(int, int)>& body);

 private:
  // Each worker waits for its own signal. So a small piece of work wakes a few threads only.
  struct Worker {
    std::atomic<std::uint64_t> round{0};
    std::condition_variable begun;
  };

  Pool();
  void start(int workers);
  void serve(int thread, Worker& worker, std::uint64_t seen);
  void take(int thread);

  const int most_threads_;
  std::mutex run_mutex_;  // one piece of work at a time
  std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<int> next_{0}, busy_{0};
  std::uint64_t round_ = 0;
  int tasks_ = 0;
  const std::function<void(int, int)>* body_ = nullptr;
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace decompops

// Threads that carry out the tasks of one piece of work together.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace decompops {

class Pool {
 public:
  // The pool of this number of threads, including the calling thread. A pool is never destroyed, because a forked child
  // has the memory of the pool but not its threads. Throws if the system cannot start the threads.
  static Pool& of(int threads);

  // Calls `body(task, thread)` for each task from 0 to `tasks` - 1; `thread` is from 0 to the number of threads - 1. If
  // a task throws, its exception is thrown after all tasks have ended.
  void run(int tasks, const std::function<void(int, int)>& body);

 private:
  explicit Pool(int threads);
  void serve(int thread);
  void take(int thread);

  std::mutex run_mutex_;  // one piece of work at a time
  std::mutex mutex_;
  std::condition_variable begun_, ended_;
  std::atomic<std::uint64_t> round_{0};
  std::atomic<int> next_{0}, busy_{0};
  std::atomic<bool> stopping_{false};
  int tasks_ = 0;
  const std::function<void(int, int)>* body_ = nullptr;
  std::exception_ptr failure_;
  std::vector<std::thread> workers_;
};

}  // namespace decompops

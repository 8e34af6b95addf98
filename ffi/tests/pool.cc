// Tests of the threads that share the tasks of a kernel.

#include "cpu/pool.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/expect.h"

using namespace decompops;

namespace {

constexpr int kCallers = 3, kThreads = 4;

// Runs `tasks` tasks, each of which must run once. The memory is not atomic, so that a sanitizer of threads sees a task
// that runs beside the caller.
void run_tasks(int tasks, int failing) {
  std::vector<int> runs(tasks);
  std::string message;
  try {
    Pool::get().run(tasks, kThreads, [&](int task, int thread) {
      expect(thread >= 0 && thread < kThreads, "a thread with a wrong number");
      ++runs[task];
      if (task == failing) throw std::runtime_error("it cannot go on");
    });
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  expect(message == (failing < tasks ? "it cannot go on" : ""), "a wrong error: " + message);
  for (int count : runs) expect(count == 1, "a task that ran " + std::to_string(count) + " times");
}

}  // namespace

// Several callers share the threads. Some of their tasks fail.
void test_pool() {
  std::atomic<int> failures{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      try {
        for (int round = 0; round < 200; ++round) {
          const int tasks = (round + caller) % 9 + 2;
          run_tasks(tasks, round % 7 == 0 ? tasks / 2 : tasks);
          if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // The threads fall asleep.
        }
      } catch (const std::exception&) {
        ++failures;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  expect(failures == 0, "a caller failed");
}

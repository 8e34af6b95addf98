// The memory and the threads of all operators of a process, and the devices that wait for each other.

#pragma once

#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cpu/fft.h"
#include "cpu/runner.h"
#include "cpu/workspace.h"
#include "native/ensemble.h"

namespace decompops::native {

// One device in one execution of an operator. `input` and `result` are what `run` needs. `done` gets the text of the error, which is empty if there is none.
// `done` must not throw.
struct Arrival {
  int place;
  int device;
  const void* input;
  void* result;
  std::function<void(const std::string&)> done;
};

// One execution of an operator, in which all devices of a mesh meet.
struct Meeting {
  std::string label;
  std::vector<int> devices;  // in the order of the mesh
  std::vector<std::optional<Arrival>> arrivals;
  int arrived = 0;
  std::string failure;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double reported = 0;
};

class Engine {
 public:
  // The engine of this process. It is never destroyed, because a forked child has the engine but not its threads.
  static Engine& get();

  // Brings a device to the meeting that `site`, `run_id` and `group` identify. The first device to arrive makes the
  // meeting with `make`. The last device to arrive calls `run` on all arrivals, and then its own `done`. For each other
  // device, a thread of its own calls `done`, because XLA continues with a device's program in the thread that calls
  // `done`. Throws in a forked process.
  void arrive(const void* site, std::int64_t run_id, int group, const std::function<Meeting()>& make, Arrival arrival,
              const std::function<void(const Meeting&)>& run);
  // Runs the programs of an ensemble on the blocks of all devices.
  void run(const Ensemble& ensemble, const Meeting& meeting, int threads, Planning planning);
  // Counts messages between devices in one process.
  void count(Index messages, Index bytes);
  // The messages and bytes between devices so far, and the bytes of work space.
  std::array<Index, 3> counts();
  void set_limits(double timeout, double limit);

 private:
  using Key = std::tuple<const void*, std::int64_t, int>;

  void finish(const Arrival& arrival, const std::string& error);
  void watch();
  void fail(Meeting& meeting, const std::string& reason);

  const int process_ = getpid();
  std::mutex meetings_mutex_;
  std::condition_variable changed_;
  std::map<Key, Meeting> meetings_;
  std::map<int, std::unique_ptr<Runner>> finishers_;  // one for each device
  std::thread watcher_;
  double timeout_ = 60, limit_ = 600;

  std::mutex run_mutex_;  // one ensemble at a time, because all use the same memory
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  Index messages_ = 0, sent_bytes_ = 0;
};

}  // namespace decompops::native

#include "native/engine.h"

#include <unistd.h>

#include <cmath>

#include "cpu/patience.h"
#include "cpu/pool.h"
#include "cpu/steps.h"

namespace decompops::native {
namespace {

// With less work than this, waking a thread takes longer than the work.
constexpr Index kLeastBytes = Index{1} << 16;

// The bytes of the blocks of all devices together, in the step that writes most.
Index bytes_of(const Ensemble& ensemble) {
  Index cells = 0;
  for (const Phase& phase : ensemble.phases) {
    for (const auto& steps : phase) {
      for (const Step& step : steps) {
        if (const auto* copy = std::get_if<Copy>(&step)) {
          cells = std::max(cells, copy->to.region.volume() * copy->element);
        } else if (const auto* sweep = std::get_if<Sweep>(&step)) {
          cells = std::max(cells, sweep->passes[0].to.region.volume() * 2 * sweep->real_bytes);
        }
      }
    }
  }
  return cells * static_cast<Index>(ensemble.programs.size());
}

// The number of parts into which each device's steps are cut, so that all threads have equal work.
int parts_of(int places, int threads) { return places % threads == 0 ? 1 : ceil_div(2 * threads, places); }

}  // namespace

Engine& Engine::get() {
  static Engine& engine = *new Engine;
  return engine;
}

void Engine::arrive(const void* site, std::int64_t run_id, int group, const std::function<Meeting()>& make,
                    Arrival arrival, const std::function<void(const Meeting&)>& run) {
  if (process_ != getpid()) throw Failure("this process was forked from one that uses JAX: start it anew");
  std::unique_lock<std::mutex> lock(meetings_mutex_);
  auto& finisher = finishers_[arrival.device];
  if (!finisher) finisher = std::make_unique<Runner>();
  const Key key{site, run_id, group};
  auto found = meetings_.find(key);
  if (found == meetings_.end()) found = meetings_.emplace(key, make()).first;
  Meeting& meeting = found->second;
  const int places = static_cast<int>(meeting.devices.size());
  try {
    if (places > 1) finisher->start();
    if (places > 1 && !watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  } catch (const std::exception& error) {
    fail(meeting, error.what());
  }
  const Arrival mine = arrival;
  meeting.arrivals[arrival.place] = std::move(arrival);
  const bool is_last = ++meeting.arrived == places;
  const std::string failure = meeting.failure;
  if (!is_last) {
    if (failure.empty()) return;
    lock.unlock();
    return mine.done(failure);  // the others have been told already
  }
  Meeting all = std::move(meeting);
  meetings_.erase(found);
  lock.unlock();
  std::string error = failure;
  if (failure.empty()) {
    try {
      run(all);
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    for (const auto& other : all.arrivals) {
      if (other->place != mine.place) finish(*other, error);
    }
  }
  mine.done(error);
}

void Engine::finish(const Arrival& arrival, const std::string& error) {
  Runner* finisher;
  {
    std::lock_guard<std::mutex> lock(meetings_mutex_);
    finisher = finishers_.at(arrival.device).get();
  }
  finisher->submit([done = arrival.done, error] { done(error); });
}

// Tells the devices that have already come that the meeting has failed. The caller holds the lock.
void Engine::fail(Meeting& meeting, const std::string& reason) {
  if (!meeting.failure.empty()) return;
  meeting.failure = reason;
  for (const auto& arrival : meeting.arrivals) {
    if (arrival) finishers_.at(arrival->device)->submit([done = arrival->done, reason] { done(reason); });
  }
}

// Reports meetings to which a device does not come, and lets them fail after the limit. Otherwise, the other devices
// would wait forever.
void Engine::watch() {
  std::unique_lock<std::mutex> lock(meetings_mutex_);
  while (true) {
    changed_.wait_for(lock, std::chrono::milliseconds(200));
    for (auto& [key, meeting] : meetings_) {
      const double seconds = seconds_since(meeting.start);
      const bool is_over = seconds > limit_;
      if (!meeting.failure.empty() || seconds < timeout_ || (seconds < 2 * meeting.reported && !is_over)) continue;
      meeting.reported = seconds;
      std::vector<int> missing;
      for (std::size_t place = 0; place < meeting.devices.size(); ++place) {
        if (!meeting.arrivals[place]) missing.push_back(meeting.devices[place]);
      }
      std::string text = "waited " + std::to_string(std::lround(seconds)) + " s for device";
      for (int device : missing) text += " " + std::to_string(device);
      report(meeting.label + ": has " + text);
      if (is_over) {
        fail(meeting,
             text + ", which has not come to this operator: all devices of a mesh must run the same operators");
      }
    }
  }
}

void Engine::run(const Ensemble& ensemble, const Meeting& meeting, int threads, Planning planning) {
  std::lock_guard<std::mutex> lock(run_mutex_);
  const int places = static_cast<int>(ensemble.programs.size());
  Pool& pool = Pool::get();
  const int most = std::min(threads, pool.most_threads());
  threads = static_cast<int>(std::clamp<Index>(bytes_of(ensemble) / kLeastBytes, 1, most));
  std::vector<Addresses> addresses;
  for (int place = 0; place < places; ++place) {
    if (place == static_cast<int>(workspaces_.size())) workspaces_.push_back(std::make_unique<Workspace>());
    const Arrival& arrival = *meeting.arrivals[place];
    addresses.push_back(
        addresses_of(ensemble.programs[place], arrival.input, arrival.result, *workspaces_[place], threads));
  }
  const int parts = parts_of(places, threads);
  for (const Phase& phase : ensemble.phases) {
    std::size_t steps = 0;
    for (const auto& own : phase) steps = std::max(steps, own.size());
    for (std::size_t i = 0; i < steps; ++i) {
      pool.run(places * parts, threads, [&](int task, int thread) {
        const int place = task / parts;
        if (i >= phase[place].size()) return;
        const Memory memory{addresses[place], addresses.data()};
        const Work work{memory, ensemble.programs[place].bytes[kPlane], planning};
        const Share share{task % parts, parts, thread};
        if (const auto* copy = std::get_if<Copy>(&phase[place][i])) carry_out(*copy, share, work);
        if (const auto* sweep = std::get_if<Sweep>(&phase[place][i])) carry_out(*sweep, share, work);
        if (const auto* measure = std::get_if<Measure>(&phase[place][i])) carry_out(*measure, share, work);
      });
    }
  }
  messages_ += ensemble.messages;
  sent_bytes_ += ensemble.sent_bytes;
}

void Engine::count(Index messages, Index bytes) {
  std::lock_guard<std::mutex> lock(run_mutex_);
  messages_ += messages;
  sent_bytes_ += bytes;
}

std::array<Index, 3> Engine::counts() {
  std::lock_guard<std::mutex> lock(run_mutex_);
  std::array<Index, 3> counts{messages_, sent_bytes_, 0};
  for (const auto& workspace : workspaces_) counts[2] += workspace->bytes();
  return counts;
}

void Engine::set_limits(double timeout, double limit) {
  std::lock_guard<std::mutex> lock(meetings_mutex_);
  timeout_ = timeout;
  limit_ = limit;
}

}  // namespace decompops::native

// Tests of the meetings of the devices of one process: with many operators under way, with a device that does not come,
// and with an operator that fails.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <future>
#include <thread>

#include "native/engine.h"
#include "tests/expect.h"
#include "tests/transpose.h"

using namespace decompops;
using namespace decompops::native;

namespace {

constexpr int kDevices = 4, kThreads = 3;

// One execution of a transpose by some devices, each in a thread of its own.
class Execution {
 public:
  Execution(std::int64_t number, const Plan& plan) : number_(number), plan_(plan) {
    for (int place = 0; place < kDevices; ++place) {
      input_.push_back(cells_of(kDevices, place, false));
      found_.emplace_back(input_[place].size(), -1);
    }
  }

  // Brings a device to the meeting. `error` gets the message that the device receives at the end.
  void bring(int place, bool fails) {
    auto make = [&] {
      Meeting meeting;
      meeting.label = plan_.label;
      for (int device = 0; device < kDevices; ++device) meeting.devices.push_back(device);
      meeting.arrivals.resize(kDevices);
      return meeting;
    };
    auto run = [&](const Meeting& meeting) {
      if (fails) throw Failure("it cannot go on");
      std::vector<Program> programs;
      for (int i = 0; i < kDevices; ++i) programs.push_back(compile(plan_, 1, sizeof(std::int64_t), Number::i64, i));
      Engine::get().run(link(std::move(programs)), meeting, kThreads, Planning::estimate);
    };
    auto done = [this, place](const std::string& error) { heard_[place].set_value(error); };
    Engine::get().arrive(&plan_, number_, 0, make, {place, place, input_[place].data(), found_[place].data(), done},
                         run);
  }

  std::string heard(int place) { return heard_[place].get_future().get(); }

  void expect_right() {
    for (int place = 0; place < kDevices; ++place) {
      expect(found_[place] == cells_of(kDevices, place, true), "wrong cells");
    }
  }

 private:
  std::int64_t number_;
  const Plan& plan_;
  std::vector<std::vector<std::int64_t>> input_, found_;
  std::array<std::promise<std::string>, kDevices> heard_;
};

std::int64_t next_number() {
  static std::int64_t number = 0;
  return ++number;
}

// Every device comes to all executions, in an order of its own.
void many_at_once(const Plan& plan, int count) {
  std::vector<std::unique_ptr<Execution>> executions;
  for (int i = 0; i < count; ++i) executions.push_back(std::make_unique<Execution>(next_number(), plan));
  std::vector<std::thread> threads;
  for (int place = 0; place < kDevices; ++place) {
    threads.emplace_back([&, place] {
      std::vector<int> order(count);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(place));
      for (int i : order) executions[i]->bring(place, false);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& execution : executions) {
    for (int place = 0; place < kDevices; ++place) expect(execution->heard(place).empty(), "an operator failed");
    execution->expect_right();
  }
}

void one_that_fails(const Plan& plan) {
  Execution execution(next_number(), plan);
  for (int place = 0; place < kDevices; ++place) execution.bring(place, true);
  for (int place = 0; place < kDevices; ++place) expect(execution.heard(place) == "it cannot go on", "no error");
}

void one_that_does_not_come(const Plan& plan) {
  Engine::get().set_limits(0.3, 1);
  Execution execution(next_number(), plan);
  for (int place = 1; place < kDevices; ++place) execution.bring(place, false);
  for (int place = 1; place < kDevices; ++place) {
    const std::string error = execution.heard(place);
    expect(error.find("for device 0, which has not come") != error.npos, error);
  }
  execution.bring(0, false);  // too late: device 0 gets the error as well
  expect(execution.heard(0).find("for device 0") != std::string::npos, "no error for the last one");
  Engine::get().set_limits(60, 600);
  many_at_once(plan, 3);
}

}  // namespace

int main() {
  try {
    test_pool();
    std::printf("the pool: passed\n");
    const Plan plan = transpose(kDevices, 0);
    for (int round = 0; round < 20; ++round) many_at_once(plan, 24);
    one_that_fails(plan);
    one_that_does_not_come(plan);
    std::printf("devices that meet: passed\n");
    return 0;
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}

// Tests of the threads in which a team runs calls.

#include "mpi/team.h"

#include <future>

#include "tests/ranks.h"

using namespace decompops;
using namespace decompops::mpi;

namespace {

// A call that ends when it runs for the second time.
struct Probe {
  explicit Probe(std::uint64_t fingerprint) {
    call->identity.fingerprint = fingerprint;
    call->label = "operator " + std::to_string(fingerprint);
    call->run = [this](double) { return ++runs == 2; };
    call->done = [this](const std::string& error) { ended.set_value(error); };
  }

  int runs = 0;
  std::promise<std::string> ended;
  std::shared_ptr<Call> call = std::make_shared<Call>();
};

}  // namespace

// Calls run until they have ended, quick or not. After a refusal, they fail on all ranks.
void test_calls() {
  AllRanks all;
  Team team(all.base, all.notices, all.ranks, {}, [](const Identity&) { return true; });
  for (bool is_quick : {false, true}) {
    Probe probe(1);
    probe.call->is_quick = is_quick;
    team.submit(probe.call);
    const std::string error = probe.ended.get_future().get();
    expect(error.empty() && probe.runs == 2, "the call has not run to its end");
  }
  Probe probe(2);
  if (all.place == 0) team.refuse("too many threads");
  team.submit(probe.call);
  expect_in("too many threads", probe.ended.get_future().get());
  team.stop();
}

// A call that waits for its turn ends when the team stops.
void test_end_of_waiting_calls() {
  AllRanks all;
  Team team(all.base, all.notices, all.ranks, {}, [](const Identity&) { return true; });
  Probe first(1), second(all.place == 0 ? 2 : 3);
  team.submit(first.call);
  expect(first.ended.get_future().get().empty(), "the first call fails");
  team.submit(second.call);
  auto ended = second.ended.get_future();
  if (all.place == 0) expect(ended.get().empty(), "the second call fails");
  MPI_Barrier(MPI_COMM_WORLD);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  team.stop();
  if (all.place != 0) {
    expect(ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready, "a call has not ended");
    expect_in("this rank ends while the operator is under way", ended.get());
  }
}

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

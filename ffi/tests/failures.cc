// Tests of the failures of ranks, and of the waits that they end.

#include "tests/ranks.h"

using namespace decompops;
using namespace decompops::mpi;

namespace {

// A wait for the first rank that never ends by itself.
bool wait_in_vain(AllRanks& all, double longest = kForever) {
  return all.failures.wait_until([] { return false; }, [] { return std::vector<int>{0}; }, longest);
}

}  // namespace

void test_failure_of_one_rank() {
  AllRanks all;
  if (all.place == 0) {
    all.failures.fail(Failure("a reason that is too long for a short string"));
    all.failures.fail(Failure("another reason"));
  } else {
    expect_in("rank 0 gave up: a reason that is too long", error_of([&] { wait_in_vain(all); }));
  }
  expect(all.failures.has_failed(), "no failure");
  expect_in("a reason that is too long for a short string", all.failures.failure());
}

void test_refusal() {
  AllRanks all;
  all.failures.check_refusal();
  if (all.place == 0) {
    all.failures.refuse("too many threads");
    all.failures.refuse("another reason");
    expect(error_of([&] { all.failures.check_refusal(); }) == "too many threads", "no refusal");
  }
  expect_in("too many threads", error_of([&] { wait_in_vain(all); }));
}

void test_waits() {
  AllRanks all;
  expect(!wait_in_vain(all, 0.01) && !all.failures.has_failed(), "a wait ends in time");
  int looks = 0;
  expect(all.failures.wait_until([&] { return ++looks > 1000; }, [] { return std::vector<int>{}; }, kForever),
         "a wait has not ended");
  MPI_Barrier(MPI_COMM_WORLD);
  all.failures.end();
  expect_in("this rank ends while the operator is under way", error_of([&] { wait_in_vain(all); }));
}

void test_limit() {
  AllRanks all;
  const Limits before = limits();
  limits() = {0.1, 0.6};
  all.failures.count(1);
  all.failures.enter("a transpose");
  const std::string error = error_of([&] { wait_in_vain(all); });
  limits() = before;
  expect_in("gave up after ", error);  // 1 s, but more on a busy machine
  expect_in(" s of waiting for rank 0; if it is only slow, pass a larger `limit`", error);
}

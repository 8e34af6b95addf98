// Tests of the order of calls.

#include "mpi/order.h"

#include <algorithm>

#include "tests/ranks.h"

using namespace decompops;
using namespace decompops::mpi;

namespace {

std::shared_ptr<Call> call_of(std::uint64_t fingerprint) {
  auto call = std::make_shared<Call>();
  call->identity.fingerprint = fingerprint;
  call->label = "operator " + std::to_string(fingerprint);
  return call;
}

}  // namespace

// All ranks run the calls of the first rank, in the order in which they reach it.
void test_order() {
  AllRanks all;
  all.messages.connect();
  Order order(all.failures, all.messages, [](const Identity&) { return true; });
  expect(order.decides() == (all.place == 0), "another rank decides");
  const std::vector<std::uint64_t> numbers{3, 1, 2};
  Order::Queue waiting{call_of(2)};  // on other ranks, the calls arrive late
  if (order.decides()) waiting = {call_of(3), call_of(1), call_of(2)};
  for (std::uint64_t number : numbers) {
    if (!order.decides()) {
      expect(order.wait(kForever), "no call is announced");
      if (number != 2) {
        expect(order.take(waiting) == nullptr, "a call has not been submitted");
        waiting.push_back(call_of(number));
      }
    }
    const auto call = order.take(waiting);
    expect(call && call->identity.fingerprint == number, "not the call of the first rank");
  }
  expect(waiting.empty(), "a call is left");
  if (!order.decides()) expect(!order.wait(0.01), "a call is announced twice");
  MPI_Barrier(MPI_COMM_WORLD);
  order.free();
}

// A rank that never comes to the announced call says so.
void test_different_orders() {
  AllRanks all;
  all.messages.connect();
  Order order(all.failures, all.messages, [](const Identity&) { return false; });
  const double timeout = limits().timeout;
  limits().timeout = 0.1;
  Order::Queue waiting{call_of(all.place == 0 ? 1 : 2)};
  if (order.decides()) {
    expect(order.take(waiting) != nullptr, "the first rank does not run its call");
  } else {
    expect(order.wait(kForever), "no call is announced");
    const std::string error = error_of([&] {
      while (order.take(waiting) == nullptr) continue;
    });
    expect_in("rank 0 is in operator 1, rank " + std::to_string(all.place) + " is in operator 2", error);
  }
  limits().timeout = timeout;
  MPI_Barrier(MPI_COMM_WORLD);
  order.free();
}

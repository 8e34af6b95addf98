// Tests of the parts of a team, on all ranks.

#include "tests/ranks.h"

#include "cpu/patience.h"

int main(int count, char** arguments) {
  int threads;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &threads);
  if (count > 1 && std::string(arguments[1]) == "large") {  // more than 2^31 bytes, scattered and in one row
    test("long message in pieces", [] { test_messages({{0, 0, 0, 0}, {1, 3, 512, decompops::Index{1} << 18}}); });
    test("long message", [] { test_messages({{0, 0, 0, 0}, {1, 1, 1, (decompops::Index{1} << 28) + 1234}}); });
  } else {
    test("the failure of one rank", test_failure_of_one_rank);
    test("refusal", test_refusal);
    test("waits", test_waits);
    test("limit", test_limit);
    test("messages", [] { test_messages({{0, 0, 0, 0}, {2, 5, 6, 700}}); });
    test("short messages", [] { test_messages({{0, 0, 0, 0}, {1, 1, 3, 1}}); });
    test("withdrawal", test_withdrawal);
    test("memory of a node", test_node_memory);
    test("phases", test_phases);
    test("exchange of rows", test_row_exchange);
    test("order", test_order);
    test("different orders", test_different_orders);
    test("calls", test_calls);
    test("the end of waiting calls", test_end_of_waiting_calls);
  }
  if (failed_tests > 0) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
}

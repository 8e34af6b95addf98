// The tests of the parts of a team, and a mesh of all ranks for them.

#pragma once

#include <numeric>

#include "mpi/messages.h"
#include "tests/expect.h"

// A mesh of all ranks. Each test has its own, because messages of a failed mesh may still be under way. All ranks must
// make and destroy it.
struct AllRanks {
  ~AllRanks() {
    notices->leave();
    messages.free();
  }

  const MPI_Comm base = copied();
  const std::shared_ptr<decompops::mpi::Notices> notices = std::make_shared<decompops::mpi::Notices>(copied());
  const std::vector<int> ranks = numbered();
  decompops::mpi::Failures failures{{ranks, notices->rank()}, notices};
  decompops::mpi::Messages messages{base, failures};
  const int place = failures.members().place, size = failures.members().size();

 private:
  static MPI_Comm copied() {
    MPI_Comm copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
    return copy;
  }
  static std::vector<int> numbered() {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<int> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
};

void test_failure_of_one_rank();
void test_refusal();
void test_waits();
void test_limit();
void test_messages(const decompops::Region& region);
void test_withdrawal();
void test_node_memory();
void test_phases();
void test_order();
void test_row_exchange();
void test_different_orders();
void test_calls();
void test_end_of_waiting_calls();

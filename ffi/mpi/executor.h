// Runs a compiled program on a block.

#pragma once

#include "cpu/pool.h"
#include "cpu/steps.h"
#include "mpi/team.h"

namespace decompops::mpi {

class Executor {
 public:
  // The program and the team must outlive the executor.
  Executor(const Program& program, Team& team, int threads, Planning planning)
      : program_(program), team_(team), pool_(Pool::of(threads)), threads_(threads), planning_(planning) {}

  // Reads `input`, writes `result`, and works in memory of `workspace`.
  void run(const void* input, void* result, Workspace& workspace);

 private:
  template <class Local>
  void run_step(const Local& step, const Memory& memory);
  void run_step(const Exchange& exchange, const Memory& memory) { team_.exchange(exchange, memory); }
  void run_step(const Start& step, const Memory& memory) { team_.start(step.exchange, memory); }
  void run_step(const Finish&, const Memory&) { team_.finish(); }

  const Program& program_;
  Team& team_;
  Pool& pool_;
  int threads_;
  Planning planning_;
};

}  // namespace decompops::mpi

// Runs a compiled program on a block.

#pragma once

#include "cpu/pool.h"
#include "cpu/steps.h"
#include "mpi/team.h"

namespace decompops::mpi {

class Executor {
 public:
  // The program and the team must outlive the executor. It reads `input`, writes `result`, and works in memory of `workspace`.
  Executor(const Program& program, Team& team, int threads, Planning planning, const void* input, void* result,
           Workspace& workspace)
      : program_(program),
        team_(team),
        pool_(Pool::of(threads)),
        threads_(threads),
        planning_(planning),
        memory_{addresses_of(program, input, result, workspace, threads)} {}

  // Returns whether the program has ended. It has not where other ranks keep it waiting for longer than `longest` seconds;
  // called again, it goes on there.
  bool run(double longest);

 private:
  template <class Local>
  void carry_out_step(const Local& step);

  const Program& program_;
  Team& team_;
  Pool& pool_;
  int threads_;
  Planning planning_;
  Memory memory_;
  std::size_t next_ = 0;     // step
  bool is_waiting_ = false;  // in it, for an exchange that has been started
};

}  // namespace decompops::mpi

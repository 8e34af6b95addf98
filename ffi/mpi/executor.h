// Runs a compiled program on a block.

#pragma once

#include "mpi/program.h"
#include "mpi/team.h"
#include "mpi/workspace.h"

namespace decompops::mpi {

class Executor {
 public:
  // `planning` is FFTW's flag. The program and the team must outlive the executor.
  Executor(const Program& program, Team& team, int threads, unsigned planning)
      : program_(program), team_(team), threads_(threads), planning_(planning) {}

  // Reads `input`, writes `result`, and works in memory of `workspace`.
  void run(const void* input, void* result, Workspace& workspace);

 private:
  void carry_out(const Copy& step, const Memory& memory);
  void carry_out(const Sweep& sweep, const Memory& memory);
  void carry_out(const Exchange& exchange, const Memory& memory) { team_.exchange(exchange, memory); }
  void carry_out(const Start& step, const Memory& memory) { team_.start(step.exchange, memory); }
  void carry_out(const Finish&, const Memory&) { team_.finish(); }

  const Program& program_;
  Team& team_;
  int threads_;
  unsigned planning_;
};

}  // namespace decompops::mpi

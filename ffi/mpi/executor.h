// Runs a compiled program on a block.

#pragma once

#include "cpu/steps.h"
#include "mpi/messages.h"
#include "mpi/node_memory.h"
#include "mpi/sharing.h"

namespace decompops::mpi {

class Executor {
 public:
  // The program, and all objects that are passed by reference, must outlive the executor. The executor reads `input`,
  // writes `result`, and uses memory of `workspace`.
  Executor(const SharedProgram& shared, Messages& messages, NodeMemory& node, int threads, Planning planning,
           const void* input, void* result, Workspace& workspace);

  // Returns whether the program has ended. Returns false if the program has waited for other ranks for longer than
  // `longest` seconds. The next call continues at the same point.
  bool run(double longest);

 private:
  bool begin_phase(double longest);
  bool exchange(const Exchange& exchange, double longest);
  template <class Local>
  void carry_out_step(const Local& step);

  const SharedProgram& shared_;
  const Program& program_ = shared_.program;
  Messages& messages_;
  NodeMemory& node_;
  int threads_;
  Planning planning_;
  Addresses own_;
  std::vector<Addresses> others_;
  std::size_t next_ = 0, phase_ = 0;
  bool is_in_phase_ = false;
  bool is_waiting_ = false;  // for an exchange that has been started
};

}  // namespace decompops::mpi

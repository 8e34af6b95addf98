#include "mpi/executor.h"

namespace decompops::mpi {

void Executor::run(const void* input, void* result, Workspace& workspace) {
  const Memory memory{addresses_of(program_, input, result, workspace, threads_)};
  for (const Step& step : program_.steps) {
    std::visit([&](const auto& step) { run_step(step, memory); }, step);
  }
}

template <class Local>
void Executor::run_step(const Local& step, const Memory& memory) {
  Work work{memory, program_.bytes[kPlane], planning_};
  // MPI sends and receives within calls to it only.
  if (team_.is_under_way()) work.between = [this] { team_.progress(); };
  pool_.run(threads_, [&](int task, int thread) { carry_out(step, Share{task, threads_, thread}, work); });
}

}  // namespace decompops::mpi

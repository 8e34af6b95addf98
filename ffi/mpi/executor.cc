#include "mpi/executor.h"

namespace decompops::mpi {

bool Executor::run(double longest) {
  for (; next_ < program_.steps.size(); ++next_) {
    const Step& step = program_.steps[next_];
    if (const auto* exchange = std::get_if<Exchange>(&step)) {
      if (!is_waiting_) team_.start(*exchange, memory_);
      is_waiting_ = !team_.finish(longest);
    } else if (const auto* start = std::get_if<Start>(&step)) {
      team_.start(start->exchange, memory_);
    } else if (std::holds_alternative<Finish>(step)) {
      is_waiting_ = !team_.finish(longest);
    } else if (const auto* copy = std::get_if<Copy>(&step)) {
      carry_out_step(*copy);
    } else {
      carry_out_step(std::get<Sweep>(step));
    }
    if (is_waiting_) return false;
  }
  return true;
}

template <class Local>
void Executor::carry_out_step(const Local& step) {
  Work work{memory_, program_.bytes[kPlane], planning_};
  // MPI sends and receives within calls to it only.
  if (team_.is_under_way()) work.between = [this] { team_.progress(); };
  pool_.run(threads_, [&](int task, int thread) { carry_out(step, Share{task, threads_, thread}, work); });
}

}  // namespace decompops::mpi

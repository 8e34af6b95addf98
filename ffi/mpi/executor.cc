#include "mpi/executor.h"

#include <algorithm>

#include "cpu/pool.h"

namespace decompops::mpi {

Executor::Executor(const SharedProgram& shared, Messages& messages, NodeMemory& node, int threads, Planning planning,
                   const void* input, void* result, Workspace& workspace)
    : shared_(shared),
      messages_(messages),
      node_(node),
      threads_(std::min(threads, Pool::get().most_threads())),
      planning_(planning),
      own_(addresses_of(program_, input, result, workspace, threads_)) {
  if (shared.neighbours.empty()) return;
  auto found_in = [](SharedMemory& memory, const Received& received) {
    Addresses addresses{};
    for (Buffer buffer : {kReceive, kReceive2}) addresses[buffer] = memory.data() + received.offset[buffer];
    return addresses;
  };
  const Addresses received = found_in(node.own(shared.own.bytes), shared.own);
  for (Buffer buffer : {kReceive, kReceive2}) own_[buffer] = received[buffer];
  for (const Neighbour& neighbour : shared.neighbours) {
    others_.push_back(found_in(node.at(neighbour.place, neighbour.received.bytes), neighbour.received));
  }
}

bool Executor::run(double longest) {
  for (; next_ < program_.steps.size(); ++next_) {
    if (!begin_phase(longest)) return false;
    const Step& step = program_.steps[next_];
    if (const auto* whole = std::get_if<Exchange>(&step)) {
      if (!exchange(*whole, longest)) return false;
    } else if (const auto* start = std::get_if<Start>(&step)) {
      messages_.start(start->exchange, {own_});
    } else if (std::holds_alternative<Finish>(step)) {
      is_waiting_ = !messages_.finish(longest);
      if (is_waiting_) return false;
    } else if (const auto* copy = std::get_if<Copy>(&step)) {
      carry_out_step(*copy);
    } else if (const auto* measure = std::get_if<Measure>(&step)) {
      carry_out_step(*measure);
    } else {
      carry_out_step(std::get<Sweep>(step));
    }
  }
  if (!begin_phase(longest)) return false;
  node_.finish_phase();
  messages_.count(shared_.messages, shared_.sent_bytes);
  return true;
}

bool Executor::begin_phase(double longest) {
  if (!is_in_phase_) is_in_phase_ = node_.wait_for(shared_.awaited[phase_], shared_.neighbours, longest);
  return is_in_phase_;
}

bool Executor::exchange(const Exchange& exchange, double longest) {
  if (!is_waiting_) {
    node_.finish_phase();
    messages_.start(exchange, {own_});
  }
  is_waiting_ = !messages_.finish(longest);
  if (is_waiting_) return false;
  ++phase_;
  is_in_phase_ = false;
  return true;
}

template <class Local>
void Executor::carry_out_step(const Local& step) {
  const Memory memory{own_, others_.data()};
  Work work{memory, program_.bytes[kPlane], planning_};
  // MPI sends and receives only while one of its functions runs, so the transforms call MPI between tiles.
  if (messages_.is_under_way()) work.between = [this] { messages_.progress(); };
  Pool::get().run(threads_, threads_,
                  [&](int task, int thread) { carry_out(step, Share{task, threads_, thread}, work); });
}

}  // namespace decompops::mpi

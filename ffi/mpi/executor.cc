#include "mpi/executor.h"

#include "mpi/parallel.h"

namespace decompops::mpi {
namespace {

void copy_piece(const Copy& step, const Piece& from, const Piece& to, bool further, const Memory& memory) {
  std::byte* target = memory[to.buffer] + to.offset;
  const Strides counts = from.region.counts();
  const std::byte* source = memory[from.buffer] + from.offset;
  if (step.sum && further) return add(target, to.stride, source, from.stride, counts, step.number);
  copy(target, to.stride, source, from.stride, counts, step.element, step.stream ? Access::stream : Access::plain);
  finish_streams();
}

}  // namespace

void Executor::run(const void* input, void* result, Workspace& workspace) {
  Memory memory;
  for (int i = 0; i < kBuffers; ++i) {
    const auto buffer = static_cast<Buffer>(i);
    memory[i] = workspace.get(buffer, program_.bytes[i] * (buffer == kPlane ? threads_ : 1));
  }
  memory[kInput] = static_cast<std::byte*>(const_cast<void*>(input));  // pieces of it are only read
  memory[kResult] = static_cast<std::byte*>(result);
  for (const Step& step : program_.steps) {
    std::visit([&](const auto& step) { carry_out(step, memory); }, step);
  }
}

void Executor::carry_out(const Copy& step, const Memory& memory) {
  const auto& pieces = step.from.pieces;
  for (const Piece& to : step.to.pieces) {
    std::vector<Region> copied;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (!step.sum || i == 0) copied.push_back(pieces[i].region);
    }
    for (const Region& gap : difference(to.region, copied)) {
      const Piece part = clipped(to, gap, step.element);
      zero(memory[part.buffer] + part.offset, part.stride, gap.counts(), step.element);
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Region common = intersection(pieces[i].region, to.region);
      if (common.empty()) continue;
      in_parallel(threads_, common, axis_to_cut(common, threads_), [&](const Region& share, int) {
        copy_piece(step, clipped(pieces[i], share, step.element), clipped(to, share, step.element), i > 0, memory);
      });
    }
  }
}

void Executor::carry_out(const Sweep& sweep, const Memory& memory) {
  auto pass_over = [&](const Sweep::Pass& pass, const Region& region, const Memory& memory, int thread) {
    // MPI sends and receives within calls to it only.
    std::function<void()> between;
    if (thread == 0 && team_.is_under_way()) between = [this] { team_.progress(); };
    transform_lines(pass.lines, pass.from, pass.to, region, pass.stream, sweep.real_bytes, planning_, memory, between);
  };
  Region region = sweep.passes.front().from.region;
  for (const auto& pass : sweep.passes) {
    for (int axis = 0; axis < region.axes(); ++axis) {
      region.hi[axis] = std::max(region.hi[axis], pass.to.region.hi[axis]);
    }
  }
  const int first = sweep.passes.front().lines.axis, last = sweep.passes.back().lines.axis;
  in_parallel(threads_, region, axis_to_cut(region, threads_, first, last), [&](const Region& part, int thread) {
    if (sweep.planes) {
      Memory own = memory;
      own[kPlane] += thread * program_.bytes[kPlane];
      auto cells = PerAxis<Index>::filled(part.axes(), 1);
      for (int axis : {first, last}) cells[axis] = part.count(axis);
      for_boxes(part, cells, [&](const Region& plane) {
        for (const auto& pass : sweep.passes) pass_over(pass, plane, own, thread);
      });
    } else {
      pass_over(sweep.passes.front(), part, memory, thread);
    }
    finish_streams();
  });
}

}  // namespace decompops::mpi

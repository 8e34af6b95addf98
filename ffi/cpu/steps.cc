#include "cpu/steps.h"

#include <cmath>

#include "cpu/narrow.h"

namespace decompops {
namespace {

// A share of `region`. The region is cut along the first grid axis with enough cells for all parts or, if there is
// none, along the batch. If the batch is too small as well, the region is cut along the axis with the most cells. The
// axes `whole` and `whole_too` are never cut.
Region share_of(const Region& region, const Share& share, int whole = -1, int whole_too = -1) {
  if (share.parts == 1) return region;
  int best = -1;
  for (int i = 0; i < region.axes(); ++i) {
    const int axis = (i + 1) % region.axes();
    if (axis == whole || axis == whole_too) continue;
    if (best < 0 || region.count(axis) > region.count(best)) best = axis;
    if (region.count(axis) >= share.parts) {
      best = axis;
      break;
    }
  }
  const Index low = region.lo[best], count = region.count(best);
  return region.with(best, low + count * share.part / share.parts, low + count * (share.part + 1) / share.parts);
}

void copy_piece(const Copy& step, const Piece& from, const Piece& to, bool further, const Memory& memory) {
  const Strides counts = from.region.counts();
  if (step.sum && further) return add(memory[to], to.stride, memory[from], from.stride, counts, step.number);
  const Access access = step.stream ? Access::stream : Access::plain;
  copy(cells_of(to, memory), cells_of(from, memory), counts, step.element, access);
}

template <class Real>
void carry_out_with(const Sweep& sweep, const Share& share, const Work& work) {
  Memory memory = work.memory;
  const std::function<void()> between = share.thread == 0 ? work.between : nullptr;
  auto pass_of = [&](const Sweep::Pass& pass) {
    return LinePass<Real>(pass.lines, pass.from, pass.to, pass.stream, work.planning, memory, between);
  };
  Region region = sweep.passes.front().from.region;
  for (const auto& pass : sweep.passes) {
    for (int axis = 0; axis < region.axes(); ++axis) {
      region.hi[axis] = std::max(region.hi[axis], pass.to.region.hi[axis]);
    }
  }
  const int first = sweep.passes.front().lines.axis, last = sweep.passes.back().lines.axis;
  const Region part = share_of(region, share, first, last);
  if (sweep.planes) {
    memory.own[kPlane] += share.thread * work.plane_bytes;
    auto cells = PerAxis<Index>::filled(part.axes(), 1);
    for (int axis : {first, last}) cells[axis] = part.count(axis);
    LinePass<Real> earlier = pass_of(sweep.passes.front()), later = pass_of(sweep.passes.back());
    for_boxes(part, cells, [&](const Region& plane) {
      earlier.run(plane);
      later.run(plane);
    });
  } else {
    pass_of(sweep.passes.front()).run(part);
  }
  finish_streams();
}

}  // namespace

Addresses addresses_of(const Program& program, const void* input, void* result, Workspace& workspace, int threads) {
  Addresses addresses;
  for (int i = 0; i < kBuffers; ++i) {
    const auto buffer = static_cast<Buffer>(i);
    addresses[i] = workspace.get(buffer, program.bytes[i] * (buffer == kPlane ? threads : 1));
  }
  addresses[kInput] = static_cast<std::byte*>(const_cast<void*>(input));  // the input is only read
  addresses[kResult] = static_cast<std::byte*>(result);
  return addresses;
}

void carry_out(const Copy& step, const Share& share, const Work& work) {
  const auto& pieces = step.from.pieces;
  const Region mine = share_of(step.to.region, share);
  for (const Piece& whole : step.to.pieces) {
    const Piece to = clipped(whole, mine, step.element);
    if (to.region.empty()) continue;
    std::vector<Region> copied;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (!step.sum || i == 0) copied.push_back(pieces[i].region);
    }
    for (const Region& gap : difference(to.region, copied)) {
      const Piece part = clipped(to, gap, step.element);
      zero(work.memory[part], part.stride, gap.counts(), stored_bytes(part, step.element));
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Region common = intersection(pieces[i].region, to.region);
      if (common.empty()) continue;
      copy_piece(step, clipped(pieces[i], common, step.element), clipped(to, common, step.element), i > 0, work.memory);
    }
  }
  finish_streams();
}

void carry_out(const Sweep& sweep, const Share& share, const Work& work) {
  sweep.real_bytes == 4 ? carry_out_with<float>(sweep, share, work) : carry_out_with<double>(sweep, share, work);
}

void carry_out(const Measure& step, const Share& share, const Work& work) {
  const Index first = step.from.region.lo[0], fields = step.from.region.count(0);
  auto norms_of = [&](int part) {
    return reinterpret_cast<double*>(work.memory.own[kPlane] + part * (work.plane_bytes / 2));
  };
  if (!step.ends) {
    const Region mine = share_of(step.from.region, share);
    for (Index field = 0; field < fields; ++field) {
      double& norm = norms_of(share.part)[field] = 0;
      for (const Piece& piece : step.from.pieces) {
        const Piece part = clipped(piece, mine.with(0, first + field, first + field + 1), step.element);
        // If the batch is shared, the field may belong to another thread.
        if (intersection(part.region, mine).empty()) continue;
        norm = std::hypot(norm, norm_of(part, work.memory, step.element, step.real_bytes));
      }
    }
    return;
  }
  if (share.part > 0) return;
  for (Index field = 0; field < fields; ++field) {
    double norm = 0;
    for (int part = 0; part < share.parts; ++part) norm = std::hypot(norm, norms_of(part)[field]);
    const Exponent exponent = exponent_for(step.gain * norm, step.real_bytes);
    for (const Piece& piece : step.to.pieces) {
      const Index place = first + field - piece.region.lo[0];
      if (place >= 0 && place < piece.region.count(0)) work.memory.exponents_of(piece)[place] = exponent;
    }
  }
}

}  // namespace decompops

#include "cpu/halo.h"

namespace decompops {
namespace {

// `count` consecutive cells of an extended block, from cell `target` on. They come from the block of the device at
// position `owner`, from cell `source` on.
struct Run {
  Index owner, source, target, count;
};

// The cells of the extended block of the device at position `part` in its line of devices.
std::vector<Run> runs(const Blocks& inner, const Blocks& extended, int axis, bool periodic, Index part) {
  const Index cells = inner.core(axis), length = inner.lengths[axis];
  const Index before = extended.halo[axis][0], after = extended.halo[axis][1];
  std::vector<Run> found;
  for (Index target = 0; target < before + cells + after; ++target) {
    Index cell = part * cells + target - before;
    if (periodic ? cell >= length + after : cell < 0 || cell >= length) continue;
    cell = (cell % length + length) % length;
    const Index owner = cell / cells, source = cell % cells;
    if (!found.empty()) {
      Run& last = found.back();
      if (last.owner == owner && last.source + last.count == source && last.target + last.count == target) {
        ++last.count;
        continue;
      }
    }
    found.push_back({owner, source, target, 1});
  }
  return found;
}

}  // namespace

Halo halo_of(const Stage& stage, const Place& place, const Field& current, const Region& result, Index element,
             Buffer receiving) {
  const Blocks& inner = stage.transposed ? stage.after : stage.before;
  const Blocks& extended = stage.transposed ? stage.before : stage.after;
  const int axis = stage.axis, line = inner.mesh_axis[axis];
  const Index parts = inner.parts[axis], mine = parts == 1 ? 0 : place.coordinate(line);
  auto runs_of = [&](Index part) { return runs(inner, extended, axis, stage.periodic, part); };

  Halo halo;
  halo.exchange.element = element;
  halo.outgoing.region = current.region;
  halo.arrived.region = result;
  const std::vector<Run> own = runs_of(mine);
  for (const Run& run : own) {
    if (run.owner != mine) continue;
    const Index from = stage.transposed ? run.target : run.source, to = stage.transposed ? run.source : run.target;
    Field here = clipped(current, current.region.with(axis + 1, from, from + run.count), element);
    for (const Piece& piece : shifted(here, axis + 1, to - from).pieces) halo.arrived.pieces.push_back(piece);
  }
  for (Index part = 0; part < parts; ++part) {
    if (part == mine) continue;
    // In an extension, cells move from their owner to the rank that needs a copy. In the transpose, they move back to
    // their owner.
    std::vector<Region> sends, receives;
    for (const Run& run : own) {
      if (run.owner != part) continue;
      const Region& block = stage.transposed ? current.region : result;
      (stage.transposed ? sends : receives).push_back(block.with(axis + 1, run.target, run.target + run.count));
    }
    for (const Run& run : runs_of(part)) {
      if (run.owner != mine) continue;
      const Region& block = stage.transposed ? result : current.region;
      (stage.transposed ? receives : sends).push_back(block.with(axis + 1, run.source, run.source + run.count));
    }
    const int peer = place.moved(line, part);
    const Index sent = halo.send_bytes, received = halo.receive_bytes;
    for (const Region& region : sends) {
      halo.outgoing.pieces.push_back(dense(kSend, halo.send_bytes, region));
      halo.send_bytes += region.volume() * element;
    }
    for (const Region& region : receives) {
      halo.arrived.pieces.push_back(dense(receiving, halo.receive_bytes, region));
      halo.receive_bytes += region.volume() * element;
    }
    auto message = [&](Buffer buffer, Index from, Index to) {
      return Message{peer, flat(buffer, from, (to - from) / element)};
    };
    if (halo.send_bytes > sent) halo.exchange.sends.push_back(message(kSend, sent, halo.send_bytes));
    if (halo.receive_bytes > received)
      halo.exchange.receives.push_back(message(receiving, received, halo.receive_bytes));
  }
  return halo;
}

}  // namespace decompops

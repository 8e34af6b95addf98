#include "cpu/rows.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace decompops {
namespace {

// The sums of the rows of earlier devices, and of all devices.
template <class Count>
std::vector<Index> starts_of(int devices, const Count& count) {
  std::vector<Index> starts{0};
  for (int device = 0; device < devices; ++device) {
    const Index rows = count(device);
    if (rows < 0) throw Failure("a device sends " + std::to_string(rows) + " rows to another one");
    starts.push_back(starts.back() + rows);
  }
  return starts;
}

// Rows far from each other are fetched into the cache so many rows ahead.
constexpr Index kAhead = 16;

// The compiler makes a few instructions of a copy whose size it knows.
template <Index size>
void copy_each(const std::byte* source, const Slot* from, std::byte* target, const Slot* to, Index count, Index bytes) {
  const Index row = size == 0 ? bytes : size;
  for (Index i = 0; i < count; ++i) {
    const Index read = from == nullptr ? i : from[i], written = to == nullptr ? i : to[i];
    if (i + kAhead < count) {
      if (from != nullptr) __builtin_prefetch(source + from[i + kAhead] * row);
      if (to != nullptr) __builtin_prefetch(target + to[i + kAhead] * row, 1);
    }
    std::memcpy(target + written * row, source + read * row, static_cast<std::size_t>(row));
  }
}

}  // namespace

Rows rows_of(const RowCounts& counts) {
  const int me = counts.me, devices = counts.devices;
  auto sent = [&](int from, int to) { return static_cast<Index>(counts.sent[from * devices + to]); };
  Rows rows;
  rows.leaving_to = starts_of(devices, [&](int to) { return sent(me, to); });
  rows.entering_from = starts_of(devices, [&](int from) { return sent(from, me); });
  const Index left = rows.leaving_to.back(), came = rows.entering_from.back();
  const Index before = counts.count, after = before - left + came;
  if (before < left || before > counts.slots || after > counts.slots) {
    throw Failure("a device with " + std::to_string(before) + " rows and " + std::to_string(counts.slots) +
                  " slots sends " + std::to_string(left) + " rows and gets " + std::to_string(came));
  }
  rows.kept = std::min(before, after);
  rows.leaving.assign(counts.leaving, counts.leaving + left);
  std::vector<bool> is_free(before - rows.kept);
  for (Slot slot : rows.leaving) {
    if (slot < 0 || slot >= before) throw Failure("a row leaves slot " + std::to_string(slot) + ", which has none");
    if (slot < after) rows.entering.push_back(slot);
    if (slot >= rows.kept) is_free[slot - rows.kept] = true;
  }
  for (Index slot = before; slot < after; ++slot) rows.entering.push_back(static_cast<Slot>(slot));
  for (Index slot = rows.kept; slot < before; ++slot) {
    if (!is_free[slot - rows.kept]) rows.leaving.push_back(static_cast<Slot>(slot));
  }
  if (static_cast<Index>(rows.entering.size()) != came + rows.stays()) throw Failure("a row leaves twice");
  if (counts.back) {
    std::swap(rows.leaving, rows.entering);
    std::swap(rows.leaving_to, rows.entering_from);
  }
  return rows;
}

void keep_rows(const RowArray& array, Index kept, Index first, Index last) {
  const Index bound = std::clamp(kept, first, last), bytes = array.bytes;
  if (array.before != array.after && bound > first) {
    std::memcpy(array.after + first * bytes, array.before + first * bytes,
                static_cast<std::size_t>((bound - first) * bytes));
  }
  if (last > bound) std::memset(array.after + bound * bytes, 0, static_cast<std::size_t>((last - bound) * bytes));
}

void copy_rows(const std::byte* source, const Slot* from, std::byte* target, const Slot* to, Index count, Index bytes) {
  switch (bytes) {
    case 1: return copy_each<1>(source, from, target, to, count, bytes);
    case 2: return copy_each<2>(source, from, target, to, count, bytes);
    case 4: return copy_each<4>(source, from, target, to, count, bytes);
    case 8: return copy_each<8>(source, from, target, to, count, bytes);
    case 12: return copy_each<12>(source, from, target, to, count, bytes);
    case 16: return copy_each<16>(source, from, target, to, count, bytes);
    case 24: return copy_each<24>(source, from, target, to, count, bytes);
    default: return copy_each<0>(source, from, target, to, count, bytes);
  }
}

}  // namespace decompops

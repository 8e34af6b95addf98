// Random moves of rows between devices.

#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "cpu/rows.h"

// Each row has a number: one more than its slot, counted over all devices. Some devices are nearly full, and some have
// no rows before or after.
struct TestMoves {
  int devices;
  decompops::Index slots;
  std::vector<std::vector<int>> target;  // the new device of each row of each device
  std::vector<std::vector<decompops::Slot>> leaving;
  std::vector<decompops::Slot> sent;

  explicit TestMoves(std::mt19937& engine, int count = 0) {
    auto random = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); };
    devices = count > 0 ? count : random(1, 5);
    const int most = random(0, 1) == 1 ? 10 : 400, kind = random(0, 2);
    slots = devices * most;
    sent.assign(devices * devices, 0);
    for (int device = 0; device < devices; ++device) {
      auto& mine = target.emplace_back(random(0, 3) == 0 ? 0 : random(0, most));
      auto& slots_of = leaving.emplace_back();
      for (int& to : mine) to = kind == 0 ? 0 : kind == 1 || random(0, 9) == 0 ? random(0, devices - 1) : device;
      for (int to = 0; to < devices; ++to) {
        for (std::size_t slot = 0; slot < mine.size(); ++slot) {
          if (mine[slot] != to || to == device) continue;
          slots_of.push_back(static_cast<decompops::Slot>(slot));
          ++sent[device * devices + to];
        }
      }
    }
  }

  // How many rows `device` has afterwards.
  decompops::Index after(int device) const { return static_cast<decompops::Index>(owned_by(device).size()); }
  // The numbers of these rows, sorted.
  std::vector<std::int64_t> owned_by(int device) const {
    std::vector<std::int64_t> rows;
    for (int from = 0; from < devices; ++from) {
      for (std::size_t slot = 0; slot < target[from].size(); ++slot) {
        if (target[from][slot] == device) rows.push_back(1 + from * slots + static_cast<std::int64_t>(slot));
      }
    }
    return rows;
  }
  decompops::RowCounts counts(int device, bool back) const {
    return {leaving[device].data(),
            sent.data(),
            static_cast<decompops::Index>(target[device].size()),
            slots,
            devices,
            device,
            back};
  }
};

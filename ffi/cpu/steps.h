// Carries out the steps of a program.

#pragma once

#include <functional>

#include "cpu/program.h"
#include "cpu/workspace.h"

namespace decompops {

// Part `part` of `parts` of a step, which can be carried out at the same time as the others, by a thread of that number.
struct Share {
  int part = 0, parts = 1, thread = 0;
};

// What all steps of a program need. `between`, if there is one, is called by the first thread before each tile of lines.
struct Work {
  const Memory& memory;
  Index plane_bytes;  // of `kPlane`, of which each thread has its own
  Planning planning;
  std::function<void()> between = {};
};

// The memory of a program's buffers, for `threads` threads.
Addresses addresses_of(const Program& program, const void* input, void* result, Workspace& workspace, int threads);

void carry_out(const Copy& step, const Share& share, const Work& work);
void carry_out(const Sweep& sweep, const Share& share, const Work& work);

}  // namespace decompops

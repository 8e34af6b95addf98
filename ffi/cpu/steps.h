// Carries out the steps of a program.

#pragma once

#include <functional>

#include "cpu/program.h"
#include "cpu/workspace.h"

namespace decompops {

// Part `part` of `parts` of a step. Different threads can carry out the parts at the same time.
struct Share {
  int part = 0, parts = 1, thread = 0;
};

// The context of all steps of a program. The first thread calls `between`, if given, before each tile of lines.
struct Work {
  const Memory& memory;
  Index plane_bytes;  // the size of the plane in `kPlane` that each thread has
  Planning planning;
  std::function<void()> between = {};
};

// The memory of a program's buffers, for `threads` threads.
Addresses addresses_of(const Program& program, const void* input, void* result, Workspace& workspace, int threads);

void carry_out(const Copy& step, const Share& share, const Work& work);
void carry_out(const Sweep& sweep, const Share& share, const Work& work);
void carry_out(const Measure& step, const Share& share, const Work& work);

}  // namespace decompops

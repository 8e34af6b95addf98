// A compiled plan for this rank: which cells go where, step by step.

#pragma once

#include <variant>

#include "cpu/copy.h"
#include "cpu/halo.h"
#include "cpu/lines.h"
#include "cpu/pieces.h"

namespace decompops {

// Moves the cells of `from` to `to`. All other cells of `to` are set to zero. With `sum`, pieces of `from` may overlap
// and are added up. With `stream`, the result bypasses the cache.
struct Copy {
  Field from, to;
  Index element;
  bool sum, stream;
  Number number;
};

// One-dimensional transforms, one after the other. With `planes`, all of them run on one plane before the next plane,
// so that intermediate results stay in cache. A plane extends along the transformed axes, at one index of each other
// axis.
struct Sweep {
  struct Pass {
    Lines lines;
    Field from, to;
    bool stream;
  };
  std::vector<Pass> passes;
  bool planes;
  Index real_bytes;
};

// Chooses the exponents of the pieces of `to`, which are sent in float16. Afterwards, `to` is computed from `from`. No
// number of a field of `to` is larger than `gain` times the 2-norm of this field of `from`. This takes two steps: all
// threads add up squares, and then one thread writes the exponents.
struct Measure {
  Field from, to;
  double gain;
  Index element, real_bytes;
  bool ends;

  // Each part of the first step, of which there are at most two for each thread, keeps a number for each field in
  // `kPlane`.
  static Index plane_bytes(Index fields) { return 2 * whole_cache_lines(fields * static_cast<Index>(sizeof(double))); }
};

// `Start` starts an exchange. `Finish` waits until the oldest exchange under way has ended.
struct Start {
  Exchange exchange;
};
struct Finish {};

using Step = std::variant<Copy, Sweep, Measure, Exchange, Start, Finish>;

struct Program {
  std::vector<Step> steps;
  std::array<Index, kBuffers> bytes{};  // the size of each buffer that the program owns
};

// `element` and `number` are the size and the type of the input's cells. `place` is this rank's row-major position in
// the mesh. `node` are the places of ranks that can write to each other's memory (mpi/sharing.h), this rank included.
Program compile(const Plan& plan, Index batch, Index element, Number number, int place,
                const std::vector<int>& node = {});

}  // namespace decompops

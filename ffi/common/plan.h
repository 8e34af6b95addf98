// What to do with a block: the C++ side of `decompops/_plan/stage.py` and `decompops/_blocks.py`.

#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/per_axis.h"

namespace decompops {

using Index = std::int64_t;

// Whatever goes wrong, in words for the user. Caught where XLA calls us; nothing is thrown beyond.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

// How a field is divided over devices and stored.
struct Blocks {
  PerAxis<Index> lengths, parts;
  PerAxis<int> mesh_axis;  // which mesh axis divides a grid axis; -1: none
  PerAxis<int> order;      // the grid axis stored at each position
  PerAxis<std::array<Index, 2>> halo;

  int ndim() const { return lengths.size(); }
  Index core(int axis) const { return ceil_div(lengths[axis], parts[axis]); }
  Index extent(int axis) const { return core(axis) + halo[axis][0] + halo[axis][1]; }
  // The cells of `axis` that are not padding in block `part`, counted in its core.
  Index valid(int axis, Index part) const;
};

// What becomes of each line along an axis: a Fourier transform, unnormalised.
struct Transform {
  enum class Kind { c2c, r2c, c2r };  // `c2r` is the last one
  Kind kind;
  int sign = 0;
  bool weighted = false;  // a half spectrum: see `DFT` in decompops/_basis/fourier.py
};

struct Stage {
  // Between `pieces` and `joined` stand moves, transforms and clears that are carried out piece by piece, the pieces
  // independent of each other.
  enum class Kind { move, fourier, extend, crop, clear, pieces, joined };  // `joined` is the last one
  Kind kind;
  Blocks before, after;
  bool transposed, periodic;
  int axis;               // of an extension; along which blocks are cut into pieces, -1 for batches
  std::vector<int> axes;  // of a transform; the last is the one that is halved
  Transform transform;
  Index count = 0;  // of pieces; fewer where there are not as many cells
};

struct Plan {
  std::vector<Stage> stages;
  Blocks source, target;
  double scale;
  std::vector<Index> mesh;  // the sizes of its axes
  std::vector<int> ranks;   // in the order of the mesh
  std::string label;        // what the user calls it, with its shape and dtype, and from where it is called
  std::string details;      // what else tells it from other operators, in words
  std::string thread;       // the name of the Python thread that runs it

  // Equal on ranks that do the same, and on no others (to the strength of a 64-bit hash).
  std::uint64_t fingerprint() const;
  std::vector<std::int64_t> numbers;  // as they came from Python: what the fingerprint is of
};

// The version of the format that `decode` reads. It changes with `FORMAT` in decompops/_backend/encode.py.
constexpr std::int64_t kFormat = 6;

// Decodes what `decompops/_backend/encode.py` encodes: the format, the number of grid axes, how the field is cut, then
// each stage with how the field is cut after it. Throws where a number has no meaning here. `mesh_axes` is how many axes
// the mesh has.
Plan decode(const std::int64_t* numbers, std::size_t count, std::size_t mesh_axes);

std::uint64_t hash_bytes(const void* data, std::size_t count, std::uint64_t seed);

}  // namespace decompops

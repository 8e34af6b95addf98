// Plans: the C++ side of `decompops/_plan/stage.py` and `decompops/_blocks.py`.

#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/per_axis.h"

namespace decompops {

using Index = std::int64_t;

// An error with a message for the user. The functions that XLA calls catch it.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

// How a field is sharded over devices and stored.
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

// The transform of each line along an axis: a Fourier transform, unnormalised.
struct Transform {
  enum class Kind { c2c, r2c, c2r };  // `c2r` is the last one
  Kind kind;
  int sign = 0;
  bool weighted = false;  // a half spectrum: see `DFT` in decompops/_basis/fourier.py
};

struct Stage {
  // The stages between `pieces` and `joined` are moves, transforms and clears. They are carried out piece by piece, and
  // the pieces are independent of each other.
  enum class Kind { move, fourier, extend, crop, clear, pieces, joined };  // `joined` is the last one
  Kind kind;
  Blocks before, after;
  bool transposed, periodic;
  int axis;               // of an extension; of a cut into pieces, where -1 stands for the batch
  std::vector<int> axes;  // of a transform; a half spectrum is halved along the last one
  Transform transform;
  Index count = 0;  // of pieces; fewer if an axis has fewer cells
};

struct Plan {
  std::vector<Stage> stages;
  Blocks source, target;
  double scale;
  std::vector<Index> mesh;  // the sizes of its axes
  std::vector<int> ranks;   // in the order of the mesh
  std::string label;        // the operator's name, its shape and dtype, and the line that calls it
  std::string details;      // other properties that distinguish it, for error messages
  std::string thread;       // the name of the Python thread that runs it

  // Equal on ranks with the same plan, and different otherwise (with the certainty of a 64-bit hash).
  std::uint64_t fingerprint() const;
  std::vector<std::int64_t> numbers;  // as Python sent them; the fingerprint is their hash
};

// The version of the format that `decode` reads. It changes with `FORMAT` in decompops/_backend/encode.py.
constexpr std::int64_t kFormat = 6;

// Decodes a plan that `decompops/_backend/encode.py` encodes: the format, the number of grid axes, the layout of the
// field, then each stage with the layout after it. Throws if a number has no meaning here. `mesh_axes` is the number of
// axes of the mesh.
Plan decode(const std::int64_t* numbers, std::size_t count, std::size_t mesh_axes);

std::uint64_t hash_bytes(const void* data, std::size_t count, std::uint64_t seed);

}  // namespace decompops

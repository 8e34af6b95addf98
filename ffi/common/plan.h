// Plans: the C++ side of `decompops/_plan/stage.py` and `decompops/_common/blocks.py`.

#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/per_axis.h"

namespace decompops {

using Index = std::int64_t;

// An error with a message for the user. The functions that XLA or Python calls catch this error.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

// How a field is sharded over devices and stored.
struct Blocks {
  PerAxis<Index> lengths, parts;
  PerAxis<int> mesh_axis;  // the mesh axis that shards a grid axis; -1: none
  PerAxis<int> order;      // the grid axis stored at each position
  PerAxis<std::array<Index, 2>> halo;

  int ndim() const { return lengths.size(); }
  Index core(int axis) const { return ceil_div(lengths[axis], parts[axis]); }
  Index extent(int axis) const { return core(axis) + halo[axis][0] + halo[axis][1]; }
  // The number of cells along `axis` in block number `part`, without padding and halo.
  Index valid(int axis, Index part) const;
};

// The transform of each line along an axis, unnormalised: a Fourier transform, or a cosine or sine transform as SciPy
// numbers them. `kind` says which cells are complex. For cosines and sines, it is `r2r` or `c2c`.
struct Transform {
  enum class Kind { c2c, r2c, c2r, r2r };
  enum class Family { fourier, cosine, sine };
  Kind kind;
  int sign = 0;
  bool weighted = false;  // whether the half spectrum is weighted: see `DFT` in decompops/_basis/fourier.py
  Family family = Family::fourier;
  int type = 0;   // of cosines and sines: 2 or 3
  int power = 0;  // the end cell among their modes is multiplied by √2 to this power

  bool is_halving() const { return kind == Kind::r2c || kind == Kind::c2r; }
  // The numbers in a cell.
  Index reals_in() const { return kind == Kind::c2c || kind == Kind::c2r ? 2 : 1; }
  Index reals_out() const { return kind == Kind::c2c || kind == Kind::r2c ? 2 : 1; }
};

struct Stage {
  // The stages between `pieces` and `joined` are moves, transforms, clears and resizes. Each piece of the block passes
  // through these stages independently of the other pieces.
  // A resize drops cells at the ends of axes, or adds cells that are zero.
  enum class Kind { move, fourier, extend, crop, clear, pieces, joined, resize, cosine };
  static constexpr Kind kLast = Kind::cosine;
  Kind kind;
  Blocks before, after;
  bool transposed, periodic;
  int axis;               // the axis of an extension, or the axis along which pieces are cut (-1: the batch)
  std::vector<int> axes;  // the axes of a transform or a resize; a half spectrum is halved along the last of them
  Transform transform;
  Index count = 0;  // the number of pieces; there are fewer if the axis has fewer cells

  bool transforms() const { return kind == Kind::fourier || kind == Kind::cosine; }
};

// The type in which exchanges between pencils send numbers of wider types. `none`: the type of the field.
enum class Wire { none, f32, bf16, f16 };  // `decode` relies on `f16` being the last type

struct Plan {
  Wire wire = Wire::none;
  std::vector<Stage> stages;
  Blocks source, target;
  double scale;
  std::vector<Index> mesh;  // the sizes of the mesh axes
  std::vector<int> ranks;   // in the order of the mesh
  std::string label;        // the operator's name, its shape and dtype
  std::string details;      // other properties that distinguish the operator, for error messages
  std::string thread;       // the name of the Python thread that runs the operator
  std::string site;         // the place in the user's program that calls the operator, without the numbers of lines

  // A 64-bit hash of the plan. Equal plans have equal hashes on all ranks, and different plans almost certainly have
  // different hashes.
  std::uint64_t fingerprint() const;
  std::vector<std::int64_t> numbers;  // the encoded plan, as Python has sent it
};

// Decodes a plan that `decompops/_backend/native/encode.py` has encoded. The numbers are, in this order: the stamp of
// the kernels (ffi/CMakeLists.txt), the type that exchanges send, the number of grid axes, the layout of the field, and
// each stage with the layout after it. Throws if a number is out of the range that the format allows. `mesh_axes` is the number of axes of the
// mesh.
Plan decode(const std::int64_t* numbers, std::size_t count, std::size_t mesh_axes);

std::uint64_t hash_bytes(const void* data, std::size_t count, std::uint64_t seed);

}  // namespace decompops

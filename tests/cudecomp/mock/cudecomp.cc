// A mock of cuDecomp for machines without GPUs. It moves host memory over MPI, as cuDecomp's documentation says that
// cuDecomp moves device memory. Like cuDecomp, the mock refuses wrong calls. It ends the program if an object is never
// destroyed, or destroyed before other objects that need it.

#include <cudecomp.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

struct cudecompHandle {
  MPI_Comm communicator;
  int rank, size, grids;
};

struct cudecompGridDesc {
  cudecompHandle_t handle;
  cudecompGridDescConfig_t config;
  std::array<MPI_Comm, 2> lines;  // the ranks in line with this rank, along each axis of the process grid
  std::array<int, 2> place;
  std::map<void*, size_t> allocated;
};

namespace {

// Returns whether `work` can hold the message. NVSHMEM works only with memory that `cudecompMalloc` has allocated.
bool has_space(const cudecompGridDesc& grid, bool nvshmem, void* work, size_t bytes) {
  const auto found = grid.allocated.find(work);
  return !nvshmem || (found != grid.allocated.end() && found->second >= bytes);
}

// Returns the range of cells of one part of an axis. If the parts do not divide the axis, the first parts have one cell
// more than the others.
std::array<int, 2> share(int length, int parts, int part) {
  const int small = length / parts, rest = length % parts;
  const int lo = part * small + std::min(part, rest);
  return {lo, lo + small + (part < rest)};
}

struct Pencil {
  std::array<std::array<int, 2>, 3> range;
  std::array<size_t, 3> stride;
  size_t size;
};

Pencil pencil(const cudecompGridDesc& grid, int axis, std::array<int, 2> place) {
  Pencil p;
  for (int other = 0, next = 0; other < 3; ++other) {
    const int length = grid.config.gdims[other];
    p.range[other] = {0, length};
    if (other != axis) p.range[other] = share(length, grid.config.pdims[next], place[next]), ++next;
  }
  p.size = 1;
  for (int i = 0; i < 3; ++i) {  // the first axis of an order is the fastest
    const int at = grid.config.transpose_mem_order[axis][i];
    p.stride[at] = p.size;
    p.size *= p.range[at][1] - p.range[at][0];
  }
  return p;
}

size_t bytes_of(cudecompDataType_t type) {
  switch (type) {
    case CUDECOMP_FLOAT: return 4;
    case CUDECOMP_DOUBLE: return 8;
    case CUDECOMP_FLOAT_COMPLEX: return 8;
    case CUDECOMP_DOUBLE_COMPLEX: return 16;
  }
  return 0;
}

// Copies the cells that two pencils have in common: with `pack` from the memory of the first pencil to a contiguous
// message, otherwise from the message to this memory.
size_t copy_common(const Pencil& own, const Pencil& other, char* memory, char* message, bool pack, size_t bytes) {
  size_t count = 0;
  std::array<std::array<int, 2>, 3> common;
  for (int i = 0; i < 3; ++i) {
    common[i] = {std::max(own.range[i][0], other.range[i][0]), std::min(own.range[i][1], other.range[i][1])};
  }
  for (int x = common[0][0]; x < common[0][1]; ++x) {
    for (int y = common[1][0]; y < common[1][1]; ++y) {
      for (int z = common[2][0]; z < common[2][1]; ++z, ++count) {
        const size_t offset = (x - own.range[0][0]) * own.stride[0] + (y - own.range[1][0]) * own.stride[1] +
                              (z - own.range[2][0]) * own.stride[2];
        char *there = memory + offset * bytes, *here = message + count * bytes;
        std::memcpy(pack ? here : there, pack ? there : here, bytes);
      }
    }
  }
  return count;
}

cudecompResult_t transpose(cudecompHandle_t handle, cudecompGridDesc_t grid, int from_axis, int to_axis, void* input,
                           void* output, void* work, cudecompDataType_t type) {
  if (!handle || !grid || grid->handle != handle || !input || !output || !work || !bytes_of(type)) {
    return CUDECOMP_RESULT_INVALID_USAGE;
  }
  if (input == output) return CUDECOMP_RESULT_NOT_SUPPORTED;  // our kernels never transpose in place
  int64_t elements;
  cudecompGetTransposeWorkspaceSize(handle, grid, &elements);
  const size_t bytes = bytes_of(type);
  const bool nvshmem = grid->config.transpose_comm_backend >= CUDECOMP_TRANSPOSE_COMM_NVSHMEM;
  if (!has_space(*grid, nvshmem, work, elements * bytes)) return CUDECOMP_RESULT_NVSHMEM_ERROR;
  // Transposes between X and Y exchange data along the first axis of the process grid. Transposes between Y and Z
  // exchange data along the second axis.
  const int along = std::min(from_axis, to_axis);
  const int parts = grid->config.pdims[along];
  auto place_of = [&](int part) {
    std::array<int, 2> place = grid->place;
    place[along] = part;
    return place;
  };
  const Pencil from = pencil(*grid, from_axis, grid->place), to = pencil(*grid, to_axis, grid->place);
  char* sent = static_cast<char*>(work);
  char* received = sent + from.size * bytes;
  std::vector<int> send_counts, receive_counts, send_starts, receive_starts;
  size_t sending = 0, receiving = 0;
  for (int part = 0; part < parts; ++part) {
    const std::array<int, 2> place = place_of(part);
    send_starts.push_back(static_cast<int>(sending * bytes));
    sending += copy_common(from, pencil(*grid, to_axis, place), static_cast<char*>(input), sent + sending * bytes, true,
                           bytes);
    send_counts.push_back(static_cast<int>(sending * bytes) - send_starts.back());
    const Pencil theirs = pencil(*grid, from_axis, place);
    size_t count = 1;
    for (int i = 0; i < 3; ++i) {
      count *= std::max(0, std::min(to.range[i][1], theirs.range[i][1]) - std::max(to.range[i][0], theirs.range[i][0]));
    }
    receive_starts.push_back(static_cast<int>(receiving * bytes));
    receive_counts.push_back(static_cast<int>(count * bytes));
    receiving += count;
  }
  if (MPI_Alltoallv(sent, send_counts.data(), send_starts.data(), MPI_BYTE, received, receive_counts.data(),
                    receive_starts.data(), MPI_BYTE, grid->lines[along]) != MPI_SUCCESS) {
    return CUDECOMP_RESULT_MPI_ERROR;
  }
  for (int part = 0; part < parts; ++part) {
    copy_common(to, pencil(*grid, from_axis, place_of(part)), static_cast<char*>(output),
                received + receive_starts[part], false, bytes);
  }
  std::memset(work, 0xFF, elements * bytes);  // cuDecomp promises nothing about the contents of the workspace.
  return CUDECOMP_RESULT_SUCCESS;
}

// Returns whether all ranks have made this collective call with the same arguments.
template <class T>
bool agree(const cudecompHandle& handle, const T& arguments) {
  std::vector<T> all(handle.size);
  MPI_Allgather(&arguments, sizeof(T), MPI_BYTE, all.data(), sizeof(T), MPI_BYTE, handle.communicator);
  for (const auto& other : all) {
    if (std::memcmp(&other, &arguments, sizeof(T)) != 0) return false;
  }
  return true;
}

// Takes the first grid and the last backend that cuDecomp would try, and times nothing.
cudecompResult_t autotune(int rank, int ranks, const cudecompGridDescAutotuneOptions_t& options,
                          cudecompGridDescConfig_t* config) {
  const bool halo = options.grid_mode == CUDECOMP_AUTOTUNE_GRID_HALO;
  if (options.initialized != 1 || options.n_trials < 1 || !bytes_of(options.dtype))
    return CUDECOMP_RESULT_INVALID_USAGE;
  const bool disabled[] = {options.disable_mpi_backends, options.disable_nccl_backends,
                           options.disable_nvshmem_backends};
  const int last_transpose[] = {CUDECOMP_TRANSPOSE_COMM_MPI_A2A, CUDECOMP_TRANSPOSE_COMM_NCCL_PL,
                                CUDECOMP_TRANSPOSE_COMM_NVSHMEM_SM};
  const int last_halo[] = {CUDECOMP_HALO_COMM_MPI_BLOCKING, CUDECOMP_HALO_COMM_NCCL,
                           CUDECOMP_HALO_COMM_NVSHMEM_BLOCKING};
  int backend = 0;
  for (int i = 0; i < 3; ++i) backend = disabled[i] ? backend : (halo ? last_halo : last_transpose)[i];
  if (!backend) return CUDECOMP_RESULT_INVALID_USAGE;
  if (options.autotune_transpose_backend)
    config->transpose_comm_backend = static_cast<cudecompTransposeCommBackend_t>(backend);
  if (options.autotune_halo_backend) config->halo_comm_backend = static_cast<cudecompHaloCommBackend_t>(backend);
  const int32_t* n = config->gdims;
  for (int rows = ranks; config->pdims[0] == 0; --rows) {
    if (rows == 0) return CUDECOMP_RESULT_NOT_SUPPORTED;
    if (ranks % rows) continue;
    const int columns = ranks / rows, widest = halo ? n[1] : std::min(n[1], n[2]);
    const bool fits = rows <= (halo ? n[0] : std::min(n[0], n[1])) && columns <= widest;
    const bool wide = halo && (options.halo_extents[0] > n[0] / rows || options.halo_extents[1] > n[1] / columns);
    if (fits && !wide) config->pdims[0] = rows, config->pdims[1] = columns;
  }
  if (rank == 0) {
    const auto& order = config->transpose_mem_order;
    std::fprintf(stderr, "mock: tuned %s of %d x %d x %d, type %d, %d trials, orders %d%d%d %d%d%d %d%d%d\n",
                 halo ? "halos" : "transposes", n[0], n[1], n[2], -options.dtype, options.n_trials, order[0][0],
                 order[0][1], order[0][2], order[1][0], order[1][1], order[1][2], order[2][0], order[2][1],
                 order[2][2]);
  }
  return CUDECOMP_RESULT_SUCCESS;
}

}  // namespace

cudecompResult_t cudecompInit_F(cudecompHandle_t* handle, MPI_Fint communicator) {
  *handle = new cudecompHandle{};
  MPI_Comm_dup(MPI_Comm_f2c(communicator), &(*handle)->communicator);
  MPI_Comm_rank((*handle)->communicator, &(*handle)->rank);
  MPI_Comm_size((*handle)->communicator, &(*handle)->size);
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompFinalize(cudecompHandle_t handle) {
  if (!handle || handle->grids != 0) return CUDECOMP_RESULT_INVALID_USAGE;
  if (handle->rank == 0) std::fprintf(stderr, "mock: finalized a handle of %d\n", handle->size);
  MPI_Comm_free(&handle->communicator);
  delete handle;
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompGridDescConfigSetDefaults(cudecompGridDescConfig_t* config) {
  std::memset(config, 0, sizeof(*config));  // also clears the bytes between fields
  config->initialized = 1;
  config->transpose_comm_backend = CUDECOMP_TRANSPOSE_COMM_MPI_P2P;
  config->halo_comm_backend = CUDECOMP_HALO_COMM_MPI;
  for (auto& order : config->transpose_mem_order) order[0] = order[1] = order[2] = -1;
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompGridDescAutotuneOptionsSetDefaults(cudecompGridDescAutotuneOptions_t* options) {
  std::memset(options, 0, sizeof(*options));
  options->initialized = 1;
  options->n_warmup_trials = 3, options->n_trials = 5;
  options->dtype = CUDECOMP_DOUBLE;
  options->allow_uneven_decompositions = true;
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompGridDescCreate(cudecompHandle_t handle, cudecompGridDesc_t* result,
                                        cudecompGridDescConfig_t* config,
                                        const cudecompGridDescAutotuneOptions_t* options) {
  if (!handle || config->initialized != 1 || !agree(*handle, *config)) return CUDECOMP_RESULT_INVALID_USAGE;
  if (options) {
    if (!agree(*handle, *options)) return CUDECOMP_RESULT_INVALID_USAGE;
    const cudecompResult_t found = autotune(handle->rank, handle->size, *options, config);
    if (found != CUDECOMP_RESULT_SUCCESS) return found;
  }
  const auto [rows, columns] = std::array<int, 2>{config->pdims[0], config->pdims[1]};
  if (rows * columns != handle->size) return CUDECOMP_RESULT_INVALID_USAGE;
  // With NVSHMEM, cuDecomp always orders ranks by rows, even if `rank_order` is another order.
  if (config->rank_order != CUDECOMP_RANK_ORDER_ROW_MAJOR) return CUDECOMP_RESULT_NOT_SUPPORTED;
  for (const auto& order : config->transpose_mem_order) {
    if ((1 << order[0] | 1 << order[1] | 1 << order[2]) != 7) return CUDECOMP_RESULT_INVALID_USAGE;
  }
  auto grid = new cudecompGridDesc{};
  grid->handle = handle;
  grid->config = *config;
  const int rank = handle->rank;
  grid->place = {rank / columns, rank % columns};
  for (int i = 0; i < 2; ++i) MPI_Comm_split(handle->communicator, grid->place[1 - i], grid->place[i], &grid->lines[i]);
  ++handle->grids;
  *result = grid;
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompGridDescDestroy(cudecompHandle_t handle, cudecompGridDesc_t grid) {
  if (!handle || !grid || grid->handle != handle || !grid->allocated.empty()) return CUDECOMP_RESULT_INVALID_USAGE;
  for (MPI_Comm& line : grid->lines) MPI_Comm_free(&line);
  --handle->grids;
  delete grid;
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompGetTransposeWorkspaceSize(cudecompHandle_t, cudecompGridDesc_t grid, int64_t* elements) {
  size_t most = 0;
  for (int axis = 0; axis < 3; ++axis) most = std::max(most, pencil(*grid, axis, grid->place).size);
  *elements = 2 * most;
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompMalloc(cudecompHandle_t handle, cudecompGridDesc_t grid, void** buffer, size_t bytes) {
  MPI_Barrier(handle->communicator);  // collective
  *buffer = std::malloc(bytes);
  grid->allocated[*buffer] = bytes;
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompFree(cudecompHandle_t, cudecompGridDesc_t grid, void* buffer) {
  if (grid->allocated.erase(buffer) != 1) return CUDECOMP_RESULT_INVALID_USAGE;
  std::free(buffer);
  return CUDECOMP_RESULT_SUCCESS;
}

#define TRANSPOSE(NAME, FROM, TO)                                                                                \
  cudecompResult_t NAME(cudecompHandle_t handle, cudecompGridDesc_t grid, void* input, void* output, void* work, \
                        cudecompDataType_t type, const int32_t*, const int32_t*, const int32_t*, const int32_t*, \
                        cudaStream_t) {                                                                          \
    return transpose(handle, grid, FROM, TO, input, output, work, type);                                         \
  }
TRANSPOSE(cudecompTransposeXToY, 0, 1)
TRANSPOSE(cudecompTransposeYToX, 1, 0)
TRANSPOSE(cudecompTransposeYToZ, 1, 2)
TRANSPOSE(cudecompTransposeZToY, 2, 1)

cudecompResult_t cudecompGetHaloWorkspaceSize(cudecompHandle_t, cudecompGridDesc_t grid, int32_t axis,
                                              const int32_t halo_extents[], int64_t* elements) {
  if (axis != 0) return CUDECOMP_RESULT_NOT_SUPPORTED;  // our kernels use X-pencils only
  const Pencil own = pencil(*grid, 0, grid->place);
  *elements = 0;
  for (int i = 1; i < 3; ++i) *elements += 4 * own.size / (own.range[i][1] - own.range[i][0]) * halo_extents[i];
  return CUDECOMP_RESULT_SUCCESS;
}

cudecompResult_t cudecompUpdateHalosX(cudecompHandle_t handle, cudecompGridDesc_t grid, void* input, void* work,
                                      cudecompDataType_t type, const int32_t halo_extents[], const bool halo_periods[],
                                      int32_t dim, const int32_t padding[], cudaStream_t) {
  if (!handle || !grid || grid->handle != handle || !input || !work || !bytes_of(type))
    return CUDECOMP_RESULT_INVALID_USAGE;
  const bool along_one = dim == 1 || dim == 2;
  if (!along_one || halo_extents[0] || halo_extents[3 - dim] || padding)
    return CUDECOMP_RESULT_NOT_SUPPORTED;  // our kernels never ask for this
  int64_t elements;
  cudecompGetHaloWorkspaceSize(handle, grid, 0, halo_extents, &elements);
  const size_t bytes = bytes_of(type);
  const bool nvshmem = grid->config.halo_comm_backend >= CUDECOMP_HALO_COMM_NVSHMEM;
  if (!has_space(*grid, nvshmem, work, elements * bytes)) return CUDECOMP_RESULT_NVSHMEM_ERROR;
  const int width = halo_extents[dim], parts = grid->config.pdims[dim - 1], part = grid->place[dim - 1];
  Pencil own = pencil(*grid, 0, grid->place);
  const int first = own.range[dim][0], last = own.range[dim][1];
  if (last - first < width) return CUDECOMP_RESULT_NOT_SUPPORTED;
  own.range[dim] = {first - width, last + width};  // with its halos
  own.size = 1;
  for (int i = 0; i < 3; ++i) {
    const int at = grid->config.transpose_mem_order[0][i];
    own.stride[at] = own.size;
    own.size *= own.range[at][1] - own.range[at][0];
  }
  auto layers = [&](int start) {
    Pencil slab = own;
    slab.range[dim] = {start, start + width};
    return slab;
  };
  auto neighbour = [&](int other) {
    return other >= 0 && other < parts ? other : halo_periods[dim] ? (other + parts) % parts : MPI_PROC_NULL;
  };
  char* sent = static_cast<char*>(work);
  const size_t size = elements / 4 * bytes;
  for (const int step : {1, -1}) {
    const int to = neighbour(part + step), from = neighbour(part - step);
    char* received = sent + size;
    copy_common(own, layers(step > 0 ? last - width : first), static_cast<char*>(input), sent, true, bytes);
    if (MPI_Sendrecv(sent, static_cast<int>(size), MPI_BYTE, to, 0, received, static_cast<int>(size), MPI_BYTE, from, 0,
                     grid->lines[dim - 1], MPI_STATUS_IGNORE) != MPI_SUCCESS) {
      return CUDECOMP_RESULT_MPI_ERROR;
    }
    if (from == MPI_PROC_NULL) continue;
    copy_common(own, layers(step > 0 ? first - width : last), static_cast<char*>(input), received, false, bytes);
  }
  std::memset(work, 0xFF, elements * bytes);
  return CUDECOMP_RESULT_SUCCESS;
}

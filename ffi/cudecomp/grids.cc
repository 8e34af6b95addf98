#include "cudecomp/grids.h"

#include <mutex>
#include <vector>

namespace decompops::cudecomp {
namespace {

std::mutex mutex;
std::vector<cudecompHandle_t> handles;
std::vector<Grid> grids;

const char* meaning(cudecompResult_t result) {
  switch (result) {
    case CUDECOMP_RESULT_SUCCESS: return "success";
    case CUDECOMP_RESULT_INVALID_USAGE: return "invalid usage";
    case CUDECOMP_RESULT_NOT_SUPPORTED: return "not supported";
    case CUDECOMP_RESULT_INTERNAL_ERROR: return "internal error";
    case CUDECOMP_RESULT_CUDA_ERROR: return "error in CUDA";
    case CUDECOMP_RESULT_CUTENSOR_ERROR: return "error in cuTENSOR";
    case CUDECOMP_RESULT_MPI_ERROR: return "error in MPI";
    case CUDECOMP_RESULT_NCCL_ERROR: return "error in NCCL";
    case CUDECOMP_RESULT_NVSHMEM_ERROR: return "error in NVSHMEM";
    case CUDECOMP_RESULT_NVML_ERROR: return "error in NVML";
  }
  return "unknown result";
}

template <class T>
T& at(std::vector<T>& all, std::int64_t i, const char* what) {
  if (i < 0 || i >= static_cast<std::int64_t>(all.size())) throw Failure(std::string("no such ") + what);
  return all[i];
}

cudecompHandle_t handle_at(std::int64_t index) {
  std::lock_guard<std::mutex> lock(mutex);
  return at(handles, index, "handle");
}

cudecompGridDescConfig_t configuration(const std::int32_t (&lengths)[3], const std::int32_t (&parts)[2],
                                       const std::int32_t (&order)[3][3]) {
  cudecompGridDescConfig_t config;
  check(cudecompGridDescConfigSetDefaults(&config), "cudecompGridDescConfigSetDefaults");
  for (int axis = 0; axis < 3; ++axis) {
    config.gdims[axis] = lengths[axis];
    for (int i = 0; i < 3; ++i) config.transpose_mem_order[axis][i] = order[axis][i];
  }
  for (int i = 0; i < 2; ++i) config.pdims[i] = parts[i];
  config.rank_order = CUDECOMP_RANK_ORDER_ROW_MAJOR;
  return config;
}

}  // namespace

void check(cudecompResult_t result, const char* what) {
  if (result != CUDECOMP_RESULT_SUCCESS) {
    throw Failure(std::string(what) + ": " + meaning(result) + " (cuDecomp's result " + std::to_string(result) +
                  "; it says more on standard error)");
  }
}

void check_cuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw Failure(std::string(what) + ": " + cudaGetErrorString(code));
}

std::int64_t add_handle(int communicator) {
  cudecompHandle_t handle;
  check(cudecompInit_F(&handle, communicator), "cudecompInit");
  std::lock_guard<std::mutex> lock(mutex);
  handles.push_back(handle);
  return static_cast<std::int64_t>(handles.size()) - 1;
}

std::int64_t add_grid(std::int64_t handle, const Division& division) {
  Grid grid{};
  grid.handle = handle_at(handle);
  auto config = configuration(division.lengths, division.parts, division.order);
  if (division.along < 0 || division.along > 1) throw Failure("a process grid has two axes");
  grid.along = division.along;
  if (division.halo) {
    config.halo_comm_backend = static_cast<cudecompHaloCommBackend_t>(division.backend);
  } else {
    config.transpose_comm_backend = static_cast<cudecompTransposeCommBackend_t>(division.backend);
  }
  check(cudecompGridDescCreate(grid.handle, &grid.descriptor, &config, nullptr), "cudecompGridDescCreate");
  std::lock_guard<std::mutex> lock(mutex);
  grids.push_back(grid);
  return static_cast<std::int64_t>(grids.size()) - 1;
}

Choice choose(std::int64_t handle_index, const Search& search) {
  const cudecompDataType_t dtypes[] = {CUDECOMP_FLOAT, CUDECOMP_DOUBLE, CUDECOMP_FLOAT_COMPLEX,
                                       CUDECOMP_DOUBLE_COMPLEX};
  const cudecompHandle_t handle = handle_at(handle_index);
  auto config = configuration(search.lengths, search.parts, search.order);
  cudecompGridDescAutotuneOptions_t options;
  check(cudecompGridDescAutotuneOptionsSetDefaults(&options), "cudecompGridDescAutotuneOptionsSetDefaults");
  if (search.dtype < 0 || search.dtype > 3) throw Failure("there is no dtype " + std::to_string(search.dtype));
  options.dtype = dtypes[search.dtype];
  options.n_trials = search.trials;
  options.disable_mpi_backends = !search.mpi;
  options.disable_nccl_backends = !search.nccl;
  options.disable_nvshmem_backends = !search.nvshmem;
  options.grid_mode = search.halo ? CUDECOMP_AUTOTUNE_GRID_HALO : CUDECOMP_AUTOTUNE_GRID_TRANSPOSE;
  (search.halo ? options.autotune_halo_backend : options.autotune_transpose_backend) = true;
  options.halo_axis = 2;
  for (int axis = 0; axis < 3; ++axis) {
    options.halo_extents[axis] = search.halo_width[axis];
    options.halo_periods[axis] = search.periodic[axis];
  }
  cudecompGridDesc_t descriptor;  // made only because cuDecomp then writes its choice to `config`
  check(cudecompGridDescCreate(handle, &descriptor, &config, &options), "cudecompGridDescCreate");
  check(cudecompGridDescDestroy(handle, descriptor), "cudecompGridDescDestroy");
  const int backend = search.halo ? static_cast<int>(config.halo_comm_backend) : config.transpose_comm_backend;
  return {{config.pdims[0], config.pdims[1]}, backend};
}

void reserve(std::int64_t index, std::int64_t bytes) {
  const Grid grid = find(index);
  if (grid.bytes >= bytes) return;
  void* workspace = nullptr;
  check(cudecompMalloc(grid.handle, grid.descriptor, &workspace, bytes), "cudecompMalloc");
  {
    std::lock_guard<std::mutex> lock(mutex);
    Grid& kept = at(grids, index, "grid descriptor");
    kept.workspace = workspace;
    kept.bytes = bytes;
  }
  if (grid.workspace) {
    // Kernels that are already queued may still use the old workspace.
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudecompFree(grid.handle, grid.descriptor, grid.workspace), "cudecompFree");
  }
}

Grid find(std::int64_t index) {
  std::lock_guard<std::mutex> lock(mutex);
  return at(grids, index, "grid descriptor");
}

std::int64_t elements(std::int64_t index, std::int64_t width) {
  const Grid grid = find(index);
  std::int64_t count = 0;
  if (width == 0) {
    check(cudecompGetTransposeWorkspaceSize(grid.handle, grid.descriptor, &count), "cudecompGetTransposeWorkspaceSize");
  } else {
    check(cudecompGetHaloWorkspaceSize(grid.handle, grid.descriptor, 0, Halo(grid, width).extents, &count),
          "cudecompGetHaloWorkspaceSize");
  }
  return count;
}

void clear() {
  std::lock_guard<std::mutex> lock(mutex);
  for (; !grids.empty(); grids.pop_back()) {
    const Grid& grid = grids.back();
    if (grid.workspace) check(cudecompFree(grid.handle, grid.descriptor, grid.workspace), "cudecompFree");
    check(cudecompGridDescDestroy(grid.handle, grid.descriptor), "cudecompGridDescDestroy");
  }
  for (; !handles.empty(); handles.pop_back()) check(cudecompFinalize(handles.back()), "cudecompFinalize");
}

}  // namespace decompops::cudecomp

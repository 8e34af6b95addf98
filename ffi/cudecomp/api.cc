#include "cudecomp/api.h"

#include <cuda_runtime.h>

#include <cstring>

#include "cudecomp/grids.h"

// An extension of Open MPI, MPICH and MPI libraries derived from them. The function is null if MPI does not have it.
extern "C" __attribute__((weak)) int MPIX_Query_cuda_support(void);

using namespace decompops;
using namespace decompops::cudecomp;

namespace {

thread_local std::string last_error;

int chosen_device = -1;

template <class Body>
std::int64_t guarded(const Body& body) {
  try {
    // In CUDA, each thread has its own current device, and Python may call from any thread.
    if (chosen_device >= 0) check_cuda(cudaSetDevice(chosen_device), "cudaSetDevice");
    return body();
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

template <class Fields>
Fields from_numbers(const std::int32_t* numbers, std::int64_t count) {
  if (count * sizeof(*numbers) != sizeof(Fields))
    throw Failure("Python describes a grid in another way than the kernels do");
  Fields fields;
  std::memcpy(&fields, numbers, sizeof(fields));
  return fields;
}

}  // namespace

const char* decompops_cudecomp_error() { return last_error.c_str(); }

std::int64_t decompops_cudecomp_use_device(int device) {
  return guarded([&]() -> std::int64_t {
    int count = 0;
    check_cuda(cudaGetDeviceCount(&count), "there is no GPU that CUDA can use (see nvidia-smi). cudaGetDeviceCount");
    if (count == 0) throw Failure("there is no GPU");
    if (device < 0) device = (-device - 1) % count;
    check_cuda(cudaSetDevice(device), "cudaSetDevice");
    return chosen_device = device;
  });
}

std::int64_t decompops_cudecomp_add_handle(int communicator) {
  return guarded([&] { return add_handle(communicator); });
}

std::int64_t decompops_cudecomp_add_grid(std::int64_t handle, const std::int32_t* numbers, std::int64_t count) {
  return guarded([&] { return add_grid(handle, from_numbers<Division>(numbers, count)); });
}

std::int64_t decompops_cudecomp_choose(std::int64_t handle, const std::int32_t* numbers, std::int64_t count,
                                       std::int32_t* chosen) {
  return guarded([&]() -> std::int64_t {
    const Choice choice = choose(handle, from_numbers<Search>(numbers, count));
    std::memcpy(chosen, &choice, sizeof(choice));
    return 0;
  });
}

std::int64_t decompops_cudecomp_mpi_knows_gpus() { return MPIX_Query_cuda_support && MPIX_Query_cuda_support(); }

std::int64_t decompops_cudecomp_elements(std::int64_t grid, std::int64_t width) {
  return guarded([&] { return elements(grid, width); });
}

std::int64_t decompops_cudecomp_reserve(std::int64_t grid, std::int64_t bytes) {
  return guarded([&]() -> std::int64_t {
    reserve(grid, bytes);
    return 0;
  });
}

std::int64_t decompops_cudecomp_clear() {
  return guarded([]() -> std::int64_t {
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    clear();
    return 0;
  });
}

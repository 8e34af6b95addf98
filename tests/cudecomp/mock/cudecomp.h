// The part of cuDecomp's C interface that our kernels use, from its public documentation (version 0.7), for the mock in
// this folder. The structures have cuDecomp's fields but another memory layout, so a program compiled for one does not
// run with the other.

#pragma once

#include <cuda_runtime.h>
#include <mpi.h>
#include <stdint.h>

extern "C" {

typedef enum {
  CUDECOMP_TRANSPOSE_COMM_MPI_P2P = 1,
  CUDECOMP_TRANSPOSE_COMM_MPI_P2P_PL = 2,
  CUDECOMP_TRANSPOSE_COMM_MPI_A2A = 3,
  CUDECOMP_TRANSPOSE_COMM_NCCL = 4,
  CUDECOMP_TRANSPOSE_COMM_NCCL_PL = 5,
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM = 6,
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM_PL = 7,
  CUDECOMP_TRANSPOSE_COMM_NVSHMEM_SM = 8
} cudecompTransposeCommBackend_t;

typedef enum {
  CUDECOMP_HALO_COMM_MPI = 1,
  CUDECOMP_HALO_COMM_MPI_BLOCKING = 2,
  CUDECOMP_HALO_COMM_NCCL = 3,
  CUDECOMP_HALO_COMM_NVSHMEM = 4,
  CUDECOMP_HALO_COMM_NVSHMEM_BLOCKING = 5
} cudecompHaloCommBackend_t;

typedef enum {
  CUDECOMP_FLOAT = -1,
  CUDECOMP_DOUBLE = -2,
  CUDECOMP_FLOAT_COMPLEX = -3,
  CUDECOMP_DOUBLE_COMPLEX = -4
} cudecompDataType_t;

typedef enum {
  CUDECOMP_RANK_ORDER_DEFAULT = 0,
  CUDECOMP_RANK_ORDER_ROW_MAJOR = 1,
  CUDECOMP_RANK_ORDER_COL_MAJOR = 2
} cudecompRankOrder_t;

typedef enum {
  CUDECOMP_RESULT_SUCCESS = 0,
  CUDECOMP_RESULT_INVALID_USAGE = 1,
  CUDECOMP_RESULT_NOT_SUPPORTED = 2,
  CUDECOMP_RESULT_INTERNAL_ERROR = 3,
  CUDECOMP_RESULT_CUDA_ERROR = 4,
  CUDECOMP_RESULT_CUTENSOR_ERROR = 5,
  CUDECOMP_RESULT_MPI_ERROR = 6,
  CUDECOMP_RESULT_NCCL_ERROR = 7,
  CUDECOMP_RESULT_NVSHMEM_ERROR = 8,
  CUDECOMP_RESULT_NVML_ERROR = 9
} cudecompResult_t;

typedef struct cudecompHandle* cudecompHandle_t;
typedef struct cudecompGridDesc* cudecompGridDesc_t;

typedef enum { CUDECOMP_AUTOTUNE_GRID_TRANSPOSE = 0, CUDECOMP_AUTOTUNE_GRID_HALO = 1 } cudecompAutotuneGridMode_t;

typedef struct {
  int32_t initialized;  // 1 if `cudecompGridDescAutotuneOptionsSetDefaults` has set the defaults
  int32_t n_warmup_trials, n_trials;
  cudecompAutotuneGridMode_t grid_mode;
  cudecompDataType_t dtype;
  bool allow_uneven_decompositions, disable_mpi_backends, disable_nccl_backends, disable_nvshmem_backends;
  bool autotune_transpose_backend, autotune_halo_backend;
  int32_t halo_extents[3], halo_axis;
  bool halo_periods[3];
} cudecompGridDescAutotuneOptions_t;

typedef struct {
  int32_t initialized;  // 1 if `cudecompGridDescConfigSetDefaults` has set the defaults
  int32_t gdims[3], gdims_dist[3], pdims[2];
  cudecompRankOrder_t rank_order;
  cudecompTransposeCommBackend_t transpose_comm_backend;
  bool transpose_axis_contiguous[3];
  int32_t transpose_mem_order[3][3];
  cudecompHaloCommBackend_t halo_comm_backend;
} cudecompGridDescConfig_t;

cudecompResult_t cudecompInit_F(cudecompHandle_t*, MPI_Fint);
cudecompResult_t cudecompFinalize(cudecompHandle_t);
cudecompResult_t cudecompGridDescConfigSetDefaults(cudecompGridDescConfig_t*);
cudecompResult_t cudecompGridDescAutotuneOptionsSetDefaults(cudecompGridDescAutotuneOptions_t*);
cudecompResult_t cudecompGridDescCreate(cudecompHandle_t, cudecompGridDesc_t*, cudecompGridDescConfig_t*,
                                        const cudecompGridDescAutotuneOptions_t*);
cudecompResult_t cudecompGridDescDestroy(cudecompHandle_t, cudecompGridDesc_t);
cudecompResult_t cudecompGetTransposeWorkspaceSize(cudecompHandle_t, cudecompGridDesc_t, int64_t*);
cudecompResult_t cudecompGetHaloWorkspaceSize(cudecompHandle_t, cudecompGridDesc_t, int32_t axis,
                                              const int32_t halo_extents[], int64_t*);
cudecompResult_t cudecompMalloc(cudecompHandle_t, cudecompGridDesc_t, void**, size_t);
cudecompResult_t cudecompFree(cudecompHandle_t, cudecompGridDesc_t, void*);

#define TRANSPOSE(NAME)                                                                                              \
  cudecompResult_t NAME(cudecompHandle_t, cudecompGridDesc_t, void* input, void* output, void* work,                 \
                        cudecompDataType_t, const int32_t input_halo_extents[], const int32_t output_halo_extents[], \
                        const int32_t input_padding[], const int32_t output_padding[], cudaStream_t)
TRANSPOSE(cudecompTransposeXToY);
TRANSPOSE(cudecompTransposeYToX);
TRANSPOSE(cudecompTransposeYToZ);
TRANSPOSE(cudecompTransposeZToY);
#undef TRANSPOSE

cudecompResult_t cudecompUpdateHalosX(cudecompHandle_t, cudecompGridDesc_t, void* input, void* work, cudecompDataType_t,
                                      const int32_t halo_extents[], const bool halo_periods[], int32_t dim,
                                      const int32_t padding[], cudaStream_t);

}  // extern "C"

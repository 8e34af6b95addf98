// Reading the memory of other processes on this host, without their help: one copy instead of a message's two or three.

#pragma once

#include "mpi/copy.h"

namespace decompops::mpi {

// Reads `bytes` bytes at `from` of the process `pid`. False if the system does not allow it.
bool read_memory(int pid, const void* from, void* to, Index bytes);

// `copy` from the memory of the process `pid`.
void copy_from(int pid, std::byte* to, Strides to_stride, const std::byte* from, Strides from_stride, Strides counts,
               Index element);

}  // namespace decompops::mpi

// Turns the return values by which MPI reports errors into exceptions.

#pragma once

#include <mpi.h>

#include <string>

#include "common/plan.h"

namespace decompops::mpi {

// Throws `Failure` with MPI's text, unless `code` reports success.
inline void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Failure(std::string(what) + ": " + std::string(text, length));
}

}  // namespace decompops::mpi

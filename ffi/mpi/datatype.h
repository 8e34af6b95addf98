// Pieces of memory, described to MPI as derived datatypes.

#pragma once

#include <mpi.h>

#include "cpu/exchange.h"

namespace decompops::mpi {

// A committed datatype, which is freed at the end of its scope.
class Datatype {
 public:
  Datatype(const Piece& piece, Index element, const PerAxis<int>& order);
  ~Datatype();
  Datatype(const Datatype&) = delete;
  operator MPI_Datatype() const { return type_; }

 private:
  void become(MPI_Datatype next);

  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

}  // namespace decompops::mpi

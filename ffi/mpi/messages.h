// What travels between ranks: pieces of memory, described to MPI as derived datatypes.

#pragma once

#include <mpi.h>

#include "mpi/pieces.h"

namespace decompops::mpi {

// `peer` is a position in the mesh.
struct Message {
  int peer;
  Piece piece;
};

// Cells travel in `order` of grid axes, the last one fastest, whatever their strides on either side. Flat pieces need none.
struct Exchange {
  std::vector<Message> sends, receives;
  Index element;
  PerAxis<int> order{0};
};

// A committed datatype; freed at the end of its scope.
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

// Throws `Failure` with MPI's text.
void check(int code, const char* what);

}  // namespace decompops::mpi

#include "mpi/datatype.h"

#include "mpi/check.h"

namespace decompops::mpi {
namespace {

// MPI counts in ints, so rows that are longer than this are sent in parts.
constexpr Index kLongest = Index{1} << 30;

MPI_Datatype row_of(Index bytes) {
  const int whole = static_cast<int>(bytes / kLongest), rest = static_cast<int>(bytes % kLongest);
  MPI_Datatype row;
  if (whole == 0) {
    check(MPI_Type_contiguous(rest, MPI_BYTE, &row), "MPI_Type_contiguous");
    return row;
  }
  MPI_Datatype part;
  check(MPI_Type_contiguous(static_cast<int>(kLongest), MPI_BYTE, &part), "MPI_Type_contiguous");
  const int counts[] = {whole, rest};
  const MPI_Aint places[] = {0, static_cast<MPI_Aint>(whole * kLongest)};
  const MPI_Datatype types[] = {part, MPI_BYTE};
  const int code = MPI_Type_create_struct(2, counts, places, types, &row);
  MPI_Type_free(&part);
  check(code, "MPI_Type_create_struct");
  return row;
}

}  // namespace

Datatype::Datatype(const Piece& piece, Index element, const PerAxis<int>& order) {
  PerAxis<int> axes;  // from the fastest to the slowest
  for (int position = order.size() - 1; position >= 0; --position) axes.push_back(order[position] + 1);
  axes.push_back(0);
  Index row = 1;
  int i = 0;
  // Axes that are contiguous in memory together form one row.
  for (; i < axes.size(); ++i) {
    const Index count = piece.region.count(axes[i]);
    if (count > 1 && piece.stride[axes[i]] != row) break;
    row *= count;
  }
  become(row_of(row * element));
  for (; i < axes.size(); ++i) {
    const Index count = piece.region.count(axes[i]);
    if (count == 1) continue;
    MPI_Datatype outer;
    check(MPI_Type_create_hvector(static_cast<int>(count), 1, piece.stride[axes[i]] * element, type_, &outer),
          "MPI_Type_create_hvector");
    become(outer);
  }
  check(MPI_Type_commit(&type_), "MPI_Type_commit");
}

Datatype::~Datatype() {
  if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
}

void Datatype::become(MPI_Datatype next) {
  if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  type_ = next;
}

}  // namespace decompops::mpi

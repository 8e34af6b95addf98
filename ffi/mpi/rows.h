// Exchanges of rows between ranks.

#pragma once

#include "cpu/rows.h"
#include "cpu/workspace.h"
#include "mpi/messages.h"

namespace decompops::mpi {

// One exchange of rows on this rank. Each rank sends one message to each rank that gets rows from it. The message has the
// rows of one array after the other.
class RowExchange {
 public:
  // `first` is the place in the mesh of the first rank of the group. `messages` and `workspace` must outlive this object.
  RowExchange(RowMoves moves, int first, Messages& messages, Workspace& workspace);

  // As `Executor::run`.
  bool run(double longest);

 private:
  void start();
  void keep();
  void take();

  const RowMoves moves_;
  const int first_;
  Messages& messages_;
  Workspace& workspace_;
  std::byte* received_ = nullptr;
  bool has_started_ = false;
};

}  // namespace decompops::mpi

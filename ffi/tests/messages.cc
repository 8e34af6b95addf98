// Tests of the messages of exchanges.

#include "tests/boxes.h"
#include "tests/ranks.h"

using namespace decompops;
using namespace decompops::mpi;

// The order in which this thread posts messages: `Messages::start` says why sends come first.
thread_local int receives_posted = 0, late_sends = 0;

int MPI_Irecv(void* data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm communicator,
              MPI_Request* request) {
  ++receives_posted;
  return PMPI_Irecv(data, count, type, rank, tag, communicator, request);
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm communicator,
              MPI_Request* request) {
  late_sends += receives_posted > 0;
  return PMPI_Isend(data, count, type, rank, tag, communicator, request);
}

// Every rank sends a box of cells to the next rank, which stores the box in another order.
void test_messages(const Region& region) {
  AllRanks all;
  all.messages.connect();
  const int next = (all.place + 1) % all.size, previous = (all.place + all.size - 1) % all.size;
  const Index element = 8;
  const Piece sent = spaced(kSend, 16, region, element), received = dense(kReceive, 8, region, {1, 0, 2});
  auto cells = [&](const Piece& piece) { return std::vector<std::int64_t>((piece.offset + span(piece, element)) / 8); };
  std::vector<std::int64_t> send = cells(sent), receive = cells(received);
  auto number = [](int rank, const Strides& cell) { return at(cell, {1, 1 << 4, 1 << 16, Index{1} << 32}) + rank; };
  for_all(region.counts(), [&](const Strides& cell) { send[2 + at(cell, sent.stride)] = number(all.place, cell); });
  Memory memory{};
  memory.own[kSend] = reinterpret_cast<std::byte*>(send.data());
  memory.own[kReceive] = reinterpret_cast<std::byte*>(receive.data());
  receives_posted = late_sends = 0;
  all.messages.start({{{next, sent}}, {{previous, received}}, element, {0, 1, 2}}, memory);
  expect(receives_posted == 1 && late_sends == 0, "a receive is posted before a send");
  while (!all.messages.finish(0.001)) all.messages.progress();
  for_all(region.counts(), [&](const Strides& cell) {
    if (receive[1 + at(cell, received.stride)] != number(previous, cell)) throw Failure("wrong cell");
  });
  expect(all.messages.sent() == 1 && all.messages.sent_bytes() == region.volume() * element, "wrong counts");
  MPI_Barrier(MPI_COMM_WORLD);
}

// A receive without a sender is cancelled.
void test_withdrawal() {
  AllRanks all;
  all.messages.connect();
  std::vector<std::int64_t> receive(8);
  Memory memory{};
  memory.own[kReceive] = reinterpret_cast<std::byte*>(receive.data());
  const Piece piece = dense(kReceive, 0, {{0, 0}, {1, 8}});
  all.messages.start({{}, {{0, piece}}, 8, {0}}, memory);
  expect(!all.messages.finish(0.01) && all.messages.is_under_way(), "nothing is under way");
  all.messages.withdraw();
  expect(!all.messages.is_under_way(), "the exchange is still under way");
  MPI_Barrier(MPI_COMM_WORLD);
}

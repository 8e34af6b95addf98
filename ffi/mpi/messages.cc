#include "mpi/messages.h"

#include "mpi/check.h"
#include "mpi/datatype.h"
#include "mpi/tags.h"

namespace decompops::mpi {
namespace {

// While exchanges are under way, a rank with other work lets MPI continue with them at this interval.
constexpr double kLookSeconds = 1e-4;

}  // namespace

// All ranks of the mesh must come together to make its communicator. A rank inside MPI_Comm_create_group does not
// receive notices, so the ranks agree before they call it. First, all ranks report that they have come. A rank that
// fails before this report tells the others. Then all ranks report that they are ready. After this report no rank may
// fail by itself.
void Messages::connect() {
  const Members& members = failures_.members();
  const int tag = 16 + 2 * static_cast<int>(members.mesh % 16000);
  meet(tag, false);
  MPI_Group all, group;
  check(MPI_Comm_group(base_, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, members.size(), members.ranks.data(), &group), "MPI_Group_incl");
  meet(tag + 1, true);
  check(MPI_Comm_create_group(base_, group, tag, &communicator_), "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
}

void Messages::meet(int tag, bool ready) {
  const Members& members = failures_.members();
  Transfer transfer;
  transfer.requests.reserve(2 * members.size());
  transfer.peers.reserve(2 * members.size());
  for (bool receive : {true, false}) {
    for (int other = 0; other < members.size(); ++other) {
      if (other == members.place) continue;
      const int rank = members.ranks[other];
      MPI_Request& request = transfer.requests.emplace_back();
      transfer.peers.push_back(other);
      check(receive ? MPI_Irecv(nullptr, 0, MPI_CHAR, rank, tag, base_, &request)
                    : MPI_Isend(nullptr, 0, MPI_CHAR, rank, tag, base_, &request),
            "the meeting of a mesh's ranks");
    }
  }
  transfer.receives = static_cast<std::size_t>(members.size() - 1);
  transfer.wait(failures_, kForever, ready);
}

// After a failure, messages may still be under way, so the communicator is not freed.
void Messages::free() {
  if (is_connected() && !failures_.has_failed()) MPI_Comm_free(&communicator_);
}

// Sends are posted before receives. Open MPI asks for the data of a large message when the message is announced and its
// receive is posted. Over TCP, a rank that is asked first fills the connection with its own data, and its own request
// must wait until these have been sent: the two directions of a link then work one after the other. If a rank announces
// its messages before it asks for those of others, each rank has asked before it sends data.
void Messages::start(const Exchange& exchange, const Memory& memory) {
  // A rank that has given up may have freed data that it has not sent.
  failures_.check();
  const std::size_t size = exchange.receives.size() + exchange.sends.size();
  Transfer& transfer = under_way_.emplace_back();
  transfer.requests.assign(size, MPI_REQUEST_NULL);
  transfer.peers.resize(size);
  transfer.receives = exchange.receives.size();
  auto post = [&](const Message& message, std::size_t i, auto start, const char* what) {
    const Piece& piece = message.piece;
    const Datatype type(piece, exchange.element, exchange.order);
    transfer.peers[i] = message.peer;
    check(start(memory[piece], 1, type, message.peer, kData, communicator_, &transfer.requests[i]), what);
  };
  for (std::size_t i = 0; i < exchange.sends.size(); ++i) {
    const Message& message = exchange.sends[i];
    post(message, transfer.receives + i, MPI_Isend, "MPI_Isend");
    count(1, message.piece.region.volume() * exchange.element);
  }
  for (std::size_t i = 0; i < transfer.receives; ++i) post(exchange.receives[i], i, MPI_Irecv, "MPI_Irecv");
}

bool Messages::finish(double longest) {
  if (!under_way_.front().wait(failures_, longest)) return false;
  under_way_.pop_front();
  // If a rank has failed in the meantime, the memory of its messages may have been overwritten before they were
  // received, so the data may be wrong. In this case, the notice of that rank has arrived before the data.
  failures_.check();
  return true;
}

void Messages::progress() {
  if (seconds_since(looked_) < kLookSeconds) return;
  failures_.check();
  looked_ = Clock::now();
}

void Messages::withdraw() noexcept {
  for (; !under_way_.empty(); under_way_.pop_front()) under_way_.front().withdraw();
}

void Messages::count(Index messages, Index bytes) {
  sent_ += messages;
  sent_bytes_ += bytes;
}

}  // namespace decompops::mpi

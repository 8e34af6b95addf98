// The messages between the ranks of a mesh, and the waits for them.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "mpi/signals.h"
#include "mpi/team.h"

namespace decompops::mpi {
namespace {

constexpr int kData = 1, kAnnouncement = 2, kMemory = 3;
// After a failure, messages that other ranks are already receiving get this time to arrive.
constexpr double kLastMessages = 2;
// While exchanges are under way, a rank with other work lets MPI continue with them at this interval.
constexpr double kLookSeconds = 1e-4;
// If the program handles SIGTERM itself, the first ranks say so when they have to wait for this long: a rank has died, or
// the program will end soon. Open MPI's launcher sends SIGKILL a quarter of a second after SIGTERM.
constexpr double kRequestSeconds = 0.05;
constexpr int kSpeakers = 4;

template <std::size_t N>
void assign(char (&to)[N], const std::string& from) {
  std::strncpy(to, from.c_str(), N - 1);
  to[N - 1] = 0;
}

}  // namespace

Team::Announcement Team::announcement_of(const Call& call) {
  Announcement announcement{call.identity, {}, {}};
  assign(announcement.label, call.label);
  assign(announcement.details, call.details);
  return announcement;
}

// The communicator of the mesh. All ranks of the mesh must come together to make it. A rank inside
// MPI_Comm_create_group does not receive notices, so the ranks agree before they call it. First, all ranks report that
// they have come. A rank that fails before this report tells the others. Then all ranks report that they are ready.
// After this report no rank may fail by itself.
void Team::connect() {
  const int tag = 16 + 2 * static_cast<int>(hash_ % 16000);
  meet(tag, false);
  MPI_Group all, group;
  check(MPI_Comm_group(base_, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, size_, ranks_.data(), &group), "MPI_Group_incl");
  meet(tag + 1, true);
  check(MPI_Comm_create_group(base_, group, tag, &communicator_), "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&all);
  MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
  share_memory();
}

void Team::share_memory() {
  if (sharing_.empty()) return;
  auto own = std::make_unique<SharedMemory>();
  const MemoryFile file = own->file();
  memories_.emplace(rank_, std::move(own));
  std::vector<MemoryFile> files(sharing_.size());
  Transfer transfer;
  transfer.requests.reserve(2 * files.size());
  transfer.peers = sharing_;
  transfer.peers.insert(transfer.peers.end(), sharing_.begin(), sharing_.end());
  for (std::size_t i = 0; i < files.size(); ++i) {
    check(MPI_Irecv(&files[i], sizeof(file), MPI_BYTE, sharing_[i], kMemory, communicator_,
                    &transfer.requests.emplace_back()),
          "MPI_Irecv");
    ++transfer.receives;
  }
  for (int place : sharing_) {
    check(MPI_Isend(&file, sizeof(file), MPI_BYTE, place, kMemory, communicator_, &transfer.requests.emplace_back()),
          "MPI_Isend");
  }
  wait(transfer);
  for (std::size_t i = 0; i < files.size(); ++i) {
    memories_.emplace(sharing_[i], std::make_unique<SharedMemory>(files[i]));
  }
}

SharedMemory& Team::own_memory(Index bytes) {
  SharedMemory& memory = *memories_.at(rank_);
  memory.grow(bytes);
  shared_bytes_ = std::max<Index>(shared_bytes_, bytes);
  return memory;
}

SharedMemory& Team::memory_of(int place, Index bytes) {
  SharedMemory& memory = *memories_.at(place);
  wait_until([&] { return memory.find(bytes); }, [&] { return std::vector<int>{ranks_[place]}; }, kForever);
  return memory;
}

void Team::finish_phase() {
  ++finished_;
  if (!memories_.empty()) memories_.at(rank_)->finished().store(finished_, std::memory_order_release);
}

bool Team::wait_for(const std::vector<int>& indices, const std::vector<Neighbour>& neighbours, double longest) {
  auto has_come = [&](int index) {
    return memories_.at(neighbours[index].place)->finished().load(std::memory_order_acquire) >= finished_;
  };
  auto needed = [&] {
    std::vector<int> late;
    for (int index : indices) {
      if (!has_come(index)) late.push_back(ranks_[neighbours[index].place]);
    }
    return late;
  };
  return wait_until([&] { return std::all_of(indices.begin(), indices.end(), has_come); }, needed, longest);
}

void Team::count(Index messages, Index bytes) {
  messages_ += messages;
  sent_bytes_ += bytes;
}

void Team::meet(int tag, bool ready) {
  Transfer transfer;
  transfer.requests.reserve(2 * size_);
  transfer.peers.reserve(2 * size_);
  for (bool receive : {true, false}) {
    for (int other = 0; other < size_; ++other) {
      if (other == rank_) continue;
      const int rank = ranks_[other];
      MPI_Request& request = transfer.requests.emplace_back();
      transfer.peers.push_back(other);
      check(receive ? MPI_Irecv(nullptr, 0, MPI_CHAR, rank, tag, base_, &request)
                    : MPI_Isend(nullptr, 0, MPI_CHAR, rank, tag, base_, &request),
            "the meeting of a mesh's ranks");
    }
  }
  transfer.receives = static_cast<std::size_t>(size_ - 1);
  wait(transfer, kForever, ready);
}

// Sends an announcement along a binomial tree: a rank passes it on to the ranks whose numbers differ from its own in
// one of the bits below its own lowest set bit.
void Team::announce(const Announcement& announcement) {
  while (!sent_.empty()) {
    int all = 0;
    check(MPI_Testall(static_cast<int>(sent_.front().requests.size()), sent_.front().requests.data(), &all,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    if (!all) break;
    sent_.pop_front();
  }
  int bit = 1;
  while (bit < size_ && (rank_ & bit) == 0) bit *= 2;
  if (rank_ + 1 >= size_ || bit == 1) return;
  Sent& sent = sent_.emplace_back();
  sent.announcement = announcement;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (rank_ + bit >= size_) continue;
    check(MPI_Isend(&sent.announcement, sizeof(Announcement), MPI_BYTE, rank_ + bit, kAnnouncement, communicator_,
                    &sent.requests.emplace_back()),
          "MPI_Isend");
    ++announcements_;
  }
}

// Takes the next announcement if it has come, and passes it on.
void Team::listen_for_announcement() {
  if (rank_ == 0 || next_ || communicator_ == MPI_COMM_NULL) return;
  auto& [requests, peers, receives] = listening_;
  if (requests.empty()) {
    requests.reserve(1);
    peers = {rank_ & (rank_ - 1)};
    check(MPI_Irecv(&incoming_, sizeof(incoming_), MPI_BYTE, peers[0], kAnnouncement, communicator_,
                    &requests.emplace_back()),
          "MPI_Irecv");
    receives = 1;
  }
  int arrived = 0;
  check(MPI_Test(requests.data(), &arrived, MPI_STATUS_IGNORE), "MPI_Test");
  if (!arrived) return;
  requests.clear();
  receives = 0;
  announce(incoming_);
  next_ = incoming_;
  next_since_ = Clock::now();
}

void Team::start(const Exchange& exchange, const Memory& memory) {
  // A rank that has given up may have freed data that it has not sent.
  notices_->check(hash_, ranks_, {});
  const std::size_t count = exchange.receives.size() + exchange.sends.size();
  Transfer& transfer = under_way_.emplace_back();
  transfer.requests.reserve(count);
  transfer.peers.reserve(count);
  auto post = [&](const Message& message, auto start, const char* what) {
    const Piece& piece = message.piece;
    const Datatype type(piece, exchange.element, exchange.order);
    MPI_Request request;
    check(start(memory[piece], 1, type, message.peer, kData, communicator_, &request), what);
    transfer.requests.push_back(request);
    transfer.peers.push_back(message.peer);
  };
  for (const Message& message : exchange.receives) {
    post(message, MPI_Irecv, "MPI_Irecv");
    ++transfer.receives;
  }
  for (const Message& message : exchange.sends) {
    post(message, MPI_Isend, "MPI_Isend");
    ++messages_;
    sent_bytes_ += message.piece.region.volume() * exchange.element;
  }
}

bool Team::finish(double longest) {
  if (!wait(under_way_.front(), longest)) return false;
  under_way_.pop_front();
  // If a rank has failed in the meantime, the memory of its messages may have been overwritten before they were
  // received, so the data may be wrong. In this case, the notice of that rank has arrived before the data.
  notices_->check(hash_, ranks_, {});
  return true;
}

void Team::progress() {
  if (seconds_since(looked_) < kLookSeconds) return;
  notices_->check(hash_, ranks_, {});
  looked_ = Clock::now();
}

// Cancels a transfer, so that its memory can be used for something else. Receives are cancelled at once. Sends get some
// time, so that ranks that are already receiving them can finish. A rank that begins to receive later looks for notices
// first, and finds one, because a failing rank sends its notices before any of its sends is cancelled.
void Team::withdraw(Transfer& transfer) noexcept {
  auto& [requests, peers, receives] = transfer;
  for (std::size_t i = 0; i < receives; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&requests[i]);
    MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
  }
  const int sends = static_cast<int>(requests.size() - receives);
  const auto start = Clock::now();
  for (int all = 0; !all && seconds_since(start) < kLastMessages; usleep(50)) {
    if (MPI_Testall(sends, requests.data() + receives, &all, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
  }
  for (std::size_t i = receives; i < requests.size(); ++i) {
    if (requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests[i]);
  }
}

bool Team::wait(Transfer& transfer, double longest, bool ready) {
  const int count = static_cast<int>(transfer.requests.size());
  auto has_ended = [&] {
    int all = 0;
    check(MPI_Testall(count, transfer.requests.data(), &all, MPI_STATUSES_IGNORE), "MPI_Testall");
    return all != 0;
  };
  try {
    return wait_until(has_ended, [&] { return unfinished(transfer); }, longest, ready);
  } catch (const std::exception&) {
    withdraw(transfer);
    throw;
  }
}

template <class HasEnded, class Needed>
bool Team::wait_until(const HasEnded& has_ended, const Needed& needed, double longest, bool ready) {
  Patience patience;
  std::vector<int> told;
  try {
    for (Index spins = 1; !has_ended(); ++spins) {
      if (spins % 16 == 0 && patience.seconds() > longest) return false;
      if (spins % 256 == 0) ready ? check_failures() : watch(needed(), patience, told);
      // Other ranks may need this core, above all if there are more ranks than cores.
      if (spins > 200) sched_yield();
      if (spins > 3000) usleep(50);
    }
    notices_->tell_waiting(hash_, "", told);
    return true;
  } catch (const Notice& notice) {
    fail(notice.what(), false);
    throw;
  } catch (const std::exception& error) {
    fail(error.what(), true);
    throw;
  }
}

// Throws if another rank has failed, and for no other reason.
void Team::check_failures() {
  try {
    notices_->check(hash_, ranks_, {});
  } catch (const std::bad_alloc&) {
  }
}

// Checks a wait that has lasted for a while. Throws if it cannot end.
void Team::watch(const std::vector<int>& needed, Patience& patience, std::vector<int>& told) {
  if (stopping_) throw Failure("this rank ends while the operator is under way");
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (refused_) throw Failure(refusal_);
  }
  notices_->check(hash_, ranks_, needed);
  if (rank_ < kSpeakers && patience.seconds() > kRequestSeconds && take_late_request(kRequestSeconds)) {
    report("rank " + std::to_string(ranks_[rank_]) + " got SIGTERM in " + here_ + ", where it waits for " +
           named(needed) + ": if the program does not end by itself, look for an earlier error of another rank");
  }
  if (!patience.is_over()) return;
  if (told.empty()) notices_->tell_waiting(hash_, here_ + " of " + named(ranks_), told = needed);
  notices_->check_waiting(needed);
  const std::string seconds = std::to_string(std::lround(patience.seconds())) + " s";
  if (patience.reports()) {
    report("rank " + std::to_string(ranks_[rank_]) + " has waited " + seconds + " in " + here_ + " for " +
           named(needed) + (before_.empty() ? " (not seen yet)" : " (last seen in " + before_ + ")"));
  }
  if (patience.has_reached_limit()) {
    throw Failure("gave up after " + seconds + " of waiting for " + named(needed) +
                  "; if it is only slow, pass a larger `limit` to `MPI.initialize`");
  }
}

// The ranks whose requests are not complete.
std::vector<int> Team::unfinished(const Transfer& transfer) const {
  const auto& [requests, peers, receives] = transfer;
  std::vector<int> needed;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    int done = 0;
    if (requests[i] != MPI_REQUEST_NULL) {
      check(MPI_Request_get_status(requests[i], &done, MPI_STATUS_IGNORE), "MPI_Request_get_status");
      const int rank = ranks_[peers[i]];
      if (!done && std::find(needed.begin(), needed.end(), rank) == needed.end()) needed.push_back(rank);
    }
  }
  return needed;
}

}  // namespace decompops::mpi

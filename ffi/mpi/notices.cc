#include "mpi/notices.h"

#include <algorithm>
#include <cstring>

#include <unistd.h>

#include "mpi/messages.h"

namespace decompops::mpi {
namespace {

constexpr int kGaveUp = 1, kLeft = 2;
// A rank that has ended goes on sending what it has promised; this is time enough for it to arrive.
constexpr std::chrono::seconds kLastMessages{3};

bool has(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

}  // namespace

Notices::Notices(MPI_Comm communicator) : communicator_(communicator) {
  MPI_Comm_rank(communicator_, &rank_);
  MPI_Comm_size(communicator_, &size_);
}

void Notices::give_up(std::uint64_t mesh, const std::string& reason, std::vector<int> ranks) {
  for (int other = 0; ranks.empty() && other < size_; ++other) ranks.push_back(other);
  for (int other : ranks) {
    if (other == rank_) continue;
    // The text must outlive the message; there are few of these, and then no more.
    auto text = new std::string(reinterpret_cast<const char*>(&mesh), sizeof(mesh));
    *text += reason;
    MPI_Request request;
    MPI_Isend(text->data(), static_cast<int>(text->size()), MPI_CHAR, other, kGaveUp, communicator_, &request);
    MPI_Request_free(&request);
  }
}

void Notices::look() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (true) {
    int arrived = 0;
    MPI_Status status;
    mpi::check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &arrived, &status), "MPI_Iprobe");
    if (!arrived) return;
    int length = 0;
    MPI_Get_count(&status, MPI_CHAR, &length);
    std::string text(length, ' ');
    mpi::check(MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, communicator_, MPI_STATUS_IGNORE),
               "MPI_Recv");
    if (status.MPI_TAG == kLeft) {
      left_.emplace(status.MPI_SOURCE, Clock::now());
    } else if (length >= static_cast<int>(sizeof(std::uint64_t))) {
      GivenUp& notice = given_up_.emplace_back(GivenUp{status.MPI_SOURCE, 0, text.substr(sizeof(std::uint64_t))});
      std::memcpy(&notice.mesh, text.data(), sizeof(notice.mesh));
    }
  }
}

void Notices::check(std::uint64_t mesh, const std::vector<int>& ranks, const std::vector<int>& needed) {
  look();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const GivenUp& notice : given_up_) {
    if ((notice.mesh == 0 || notice.mesh == mesh) && has(ranks, notice.rank)) {
      throw Notice("rank " + std::to_string(notice.rank) + " gave up: " + notice.reason);
    }
  }
  for (const auto& [rank, since] : left_) {
    if (has(needed, rank) && Clock::now() - since > kLastMessages) {
      throw Notice("rank " + std::to_string(rank) + " has ended its program, while this rank waits for it here");
    }
  }
}

void Notices::leave() {
  std::vector<MPI_Request> requests;
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) MPI_Isend(nullptr, 0, MPI_CHAR, other, kLeft, communicator_, &requests.emplace_back());
  }
  while (static_cast<int>(left_.size()) < size_ - 1) {
    look();
    usleep(200);
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  MPI_Comm_free(&communicator_);
}

}  // namespace decompops::mpi

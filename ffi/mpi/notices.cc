#include "mpi/notices.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/patience.h"
#include "mpi/check.h"

namespace decompops::mpi {
namespace {

constexpr int kGaveUp = 1, kLeft = 2, kWaiting = 3;
// A rank completes its sends before it ends. This long after its end, all sent messages have arrived.
constexpr std::chrono::seconds kLastMessages{3};

constexpr int kHostName = 64;  // Linux allows no longer names

bool has(const std::vector<int>& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

}  // namespace

std::string different_programs(const std::string& how) {
  return "the ranks run different programs: " + how +
         ". All ranks must call the same operators on the same shapes, dtypes and meshes, and compile the same "
         "programs.";
}

Notices::Notices(MPI_Comm communicator) : communicator_(communicator) {
  MPI_Comm_rank(communicator_, &rank_);
  MPI_Comm_size(communicator_, &size_);
  char mine[kHostName] = "";
  gethostname(mine, kHostName - 1);
  hosts_.resize(static_cast<std::size_t>(size_) * kHostName);
  MPI_Allgather(mine, kHostName, MPI_CHAR, hosts_.data(), kHostName, MPI_CHAR, communicator_);
  // If each name equals the next one, there is only one host.
  if (std::equal(hosts_.begin() + kHostName, hosts_.end(), hosts_.begin())) hosts_.clear();
}

std::string Notices::hosts_of(const std::vector<int>& ranks) const {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> found;
  for (std::size_t i = 0; i < ranks.size() && !hosts_.empty() && found.size() <= kMost; ++i) {
    const std::string host = &hosts_[static_cast<std::size_t>(ranks[i]) * kHostName];
    if (std::find(found.begin(), found.end(), host) == found.end()) found.push_back(host);
  }
  std::string text;
  for (std::size_t i = 0; i < found.size(); ++i) text += (i == 0 ? " on " : ", ") + (i < kMost ? found[i] : "...");
  return text;
}

void Notices::send(int tag, std::uint64_t mesh, const std::string& text, const std::vector<int>& ranks) {
  for (int other : ranks) {
    if (other == rank_) continue;
    // The text must outlive the send, so it is never freed. A rank sends few notices, most of them at its end.
    auto message = new std::string(reinterpret_cast<const char*>(&mesh), sizeof(mesh));
    *message += text;
    MPI_Request request;
    MPI_Isend(message->data(), static_cast<int>(message->size()), MPI_CHAR, other, tag, communicator_, &request);
    MPI_Request_free(&request);
  }
}

void Notices::give_up(std::uint64_t mesh, const std::string& reason, std::vector<int> ranks) {
  if (ranks.empty()) {
    for (int other = 0; other < size_; ++other) ranks.push_back(other);
  }
  send(kGaveUp, mesh, reason, ranks);
}

bool Notices::is_repeated(const std::string& reason) {
  look();
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(given_up_.begin(), given_up_.end(), [&](const GivenUp& notice) {
    return notice.mesh == 0 && notice.rank < rank_ && notice.reason == reason;
  });
}

void Notices::tell_waiting(std::uint64_t mesh, const std::string& label, const std::vector<int>& needed) {
  send(kWaiting, mesh, label, needed);
}

void Notices::count(std::uint64_t mesh, int change) {
  std::lock_guard<std::mutex> lock(calls_mutex_);
  calls_[mesh] += change;
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
    mpi::check(
        MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, status.MPI_TAG, communicator_, MPI_STATUS_IGNORE),
        "MPI_Recv");
    if (status.MPI_TAG == kLeft) {
      left_.emplace(status.MPI_SOURCE, Clock::now());
      continue;
    }
    std::uint64_t mesh;
    std::memcpy(&mesh, text.data(), sizeof(mesh));
    text.erase(0, sizeof(mesh));
    if (status.MPI_TAG == kGaveUp) {
      given_up_.push_back({status.MPI_SOURCE, mesh, text});
    } else if (text.empty()) {
      waiting_.erase({status.MPI_SOURCE, mesh});
    } else {
      waiting_[{status.MPI_SOURCE, mesh}] = text;
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
      throw Notice("rank " + std::to_string(rank) +
                   " has ended its program, while this rank waits for it here; all ranks must call the same operators");
    }
  }
}

void Notices::check_waiting(const std::vector<int>& needed) {
  std::scoped_lock lock(mutex_, calls_mutex_);
  for (const auto& [origin, label] : waiting_) {
    const auto& [rank, mesh] = origin;
    if (has(needed, rank) && calls_[mesh] == 0) {
      const std::string other = std::to_string(rank);
      throw Failure(
          different_programs("this one waits for rank " + other + ", and rank " + other + " for this one in " + label));
    }
  }
}

void Notices::leave() {
  std::vector<MPI_Request> requests;
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) MPI_Isend(nullptr, 0, MPI_CHAR, other, kLeft, communicator_, &requests.emplace_back());
  }
  Patience patience;
  while (true) {
    look();
    std::vector<int> others;
    for (int other = 0; other < size_; ++other) {
      if (other != rank_ && left_.count(other) == 0) others.push_back(other);
    }
    if (others.empty()) break;
    if (patience.reports()) {
      report("rank " + std::to_string(rank_) + " has ended its program, and has waited " +
             std::to_string(std::lround(patience.seconds())) + " s for " + named(others) + " to end, too");
    }
    if (patience.has_reached_limit()) MPI_Abort(communicator_, 1);
    usleep(200);
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  MPI_Comm_free(&communicator_);
}

}  // namespace decompops::mpi

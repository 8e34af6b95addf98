#include "mpi/order.h"

#include <algorithm>
#include <cstring>

#include "mpi/check.h"
#include "mpi/tags.h"

namespace decompops::mpi {
namespace {

// How long a rank waits for an announced call that none of its programs contains. Another thread may still compile a
// program that contains the call.
constexpr double kUnknownSeconds = 5;

template <std::size_t N>
void assign(char (&to)[N], const std::string& from) {
  std::strncpy(to, from.c_str(), N - 1);
  to[N - 1] = 0;
}

}  // namespace

std::shared_ptr<Call> Order::take(Queue& waiting) {
  auto found = waiting.begin();
  if (decides()) {
    announce(announcement_of(**found));
  } else {
    found = std::find_if(waiting.begin(), waiting.end(),
                         [&](const auto& call) { return call->identity == next_->identity; });
  }
  if (found == waiting.end()) {
    check_announced(waiting);
    return nullptr;
  }
  std::shared_ptr<Call> call = *found;
  waiting.erase(found);
  next_.reset();
  return call;
}

// Throws if this rank will not submit the announced call, which is not among those that wait.
void Order::check_announced(const Queue& waiting) const {
  // A thread whose call waits here compiles nothing meanwhile. Another thread may still compile the announced call.
  const Identity& wanted = next_->identity;
  const auto same = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const auto& call) { return call->identity.thread == wanted.thread; });
  const bool hopeless = same != waiting.end() && !is_compiled_(wanted);
  const double timeout = limits().timeout;
  if (seconds_since(next_since_) > (hopeless ? std::min(kUnknownSeconds, timeout) : timeout)) {
    throw Failure(different_programs(both_sides(announcement_of(same != waiting.end() ? **same : *waiting.front()))));
  }
}

// The call that the first rank has announced, and the call of this rank.
std::string Order::both_sides(const Announcement& mine) const {
  const Members& members = failures_.members();
  const std::string label = mine.label, details = mine.details;
  auto side = [](int rank, const std::string& label, const std::string& more) {
    return "rank " + std::to_string(rank) + " is in " + label + (more.empty() ? "" : " (" + more + ")");
  };
  auto sides = [&](const std::string& first, const std::string& second) {
    return side(members.ranks[0], next_->label, first) + ", " + side(members.ranks[members.place], label, second);
  };
  if (next_->label != label) return sides("", "");
  if (next_->details != details) return sides(next_->details, details);
  auto compiled = [](const Identity& identity) {
    return "compiled as number " + std::to_string(identity.occurrence + 1);
  };
  return sides(compiled(next_->identity), compiled(mine.identity));
}

Order::Announcement Order::announcement_of(const Call& call) {
  Announcement announcement{call.identity, {}, {}};
  assign(announcement.label, call.label);
  assign(announcement.details, call.details);
  return announcement;
}

// Sends an announcement along a binomial tree: a rank passes it on to the ranks whose places differ from its own in
// one of the bits below its own lowest set bit.
void Order::announce(const Announcement& announcement) {
  while (!sent_.empty()) {
    int all = 0;
    check(MPI_Testall(static_cast<int>(sent_.front().requests.size()), sent_.front().requests.data(), &all,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    if (!all) break;
    sent_.pop_front();
  }
  const int place = failures_.members().place, size = failures_.members().size();
  int bit = 1;
  while (bit < size && (place & bit) == 0) bit *= 2;
  if (place + 1 >= size || bit == 1) return;
  Sent& sent = sent_.emplace_back();
  sent.announcement = announcement;
  for (bit /= 2; bit > 0; bit /= 2) {
    if (place + bit >= size) continue;
    check(MPI_Isend(&sent.announcement, sizeof(Announcement), MPI_BYTE, place + bit, kAnnouncement,
                    messages_.communicator(), &sent.requests.emplace_back()),
          "MPI_Isend");
    ++announcements_;
  }
}

void Order::listen() {
  if (decides() || next_ || !messages_.is_connected()) return;
  auto& requests = listening_.requests;
  if (requests.empty()) {
    const int place = failures_.members().place;
    requests.reserve(1);
    listening_.peers = {place & (place - 1)};
    check(MPI_Irecv(&incoming_, sizeof(incoming_), MPI_BYTE, listening_.peers[0], kAnnouncement,
                    messages_.communicator(), &requests.emplace_back()),
          "MPI_Irecv");
    listening_.receives = 1;
  }
  int arrived = 0;
  check(MPI_Test(requests.data(), &arrived, MPI_STATUS_IGNORE), "MPI_Test");
  if (!arrived) return;
  requests.clear();
  listening_.receives = 0;
  announce(incoming_);
  next_ = incoming_;
  next_since_ = Clock::now();
}

bool Order::wait(double longest) {
  listen();
  if (!next_ && listening_.wait(failures_, longest)) listen();
  return next_.has_value();
}

void Order::free() {
  listening_.withdraw();
  if (failures_.has_failed()) return;  // messages may still be under way
  for (Sent& sent : sent_) {
    MPI_Waitall(static_cast<int>(sent.requests.size()), sent.requests.data(), MPI_STATUSES_IGNORE);
  }
  sent_.clear();
}

}  // namespace decompops::mpi

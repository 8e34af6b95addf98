#include "mpi/rows.h"

#include <algorithm>
#include <utility>

namespace decompops::mpi {
namespace {

// So many bytes are copied between two calls to MPI, which continues with messages only in these calls.
constexpr Index kBetween = Index{1} << 20;

}  // namespace

RowExchange::RowExchange(RowMoves moves, int first, Messages& messages, Workspace& workspace)
    : moves_(std::move(moves)), first_(first), messages_(messages), workspace_(workspace) {}

bool RowExchange::run(double longest) {
  if (!has_started_) {
    start();
    has_started_ = true;
    keep();
  }
  if (!messages_.finish(longest)) return false;
  take();
  return true;
}

void RowExchange::start() {
  const Rows& rows = moves_.rows;
  const Index row = moves_.bytes_of_row();
  const int devices = static_cast<int>(rows.leaving_to.size()) - 1;
  Memory memory{};
  std::byte* packed = memory.own[kSend] = workspace_.get(kSend, rows.leaving_to[devices] * row);
  received_ = memory.own[kReceive] = workspace_.get(kReceive, rows.entering_from[devices] * row);
  Exchange exchange{{}, {}, 1};
  for (int device = 0; device < devices; ++device) {
    const Index count = rows.sends(device);
    for (const RowArray& array : moves_.arrays) {
      copy_rows(array.before, rows.leaving.data() + rows.leaving_to[device], packed, nullptr, count, array.bytes);
      packed += count * array.bytes;
    }
    if (count > 0) {
      exchange.sends.push_back({first_ + device, flat(kSend, rows.leaving_to[device] * row, count * row)});
    }
    if (rows.receives(device) > 0) {
      exchange.receives.push_back(
          {first_ + device, flat(kReceive, rows.entering_from[device] * row, rows.receives(device) * row)});
    }
  }
  messages_.start(exchange, memory);
}

// Copies the rows of this rank while messages are under way.
void RowExchange::keep() {
  const Rows& rows = moves_.rows;
  for (const RowArray& array : moves_.arrays) {
    prefer_huge_pages(array.after, moves_.slots * array.bytes);
    const Index piece = std::max<Index>(kBetween / std::max<Index>(array.bytes, 1), 1);
    for (Index slot = 0; slot < moves_.slots; slot += piece) {
      keep_rows(array, rows.kept, slot, std::min(slot + piece, moves_.slots));
      messages_.progress();
    }
    copy_rows(array.before, rows.leaving.data() + rows.leaving_to.back(), array.after,
              rows.entering.data() + rows.entering_from.back(), rows.stays(), array.bytes);
  }
}

void RowExchange::take() {
  const Rows& rows = moves_.rows;
  const std::byte* packed = received_;
  for (std::size_t device = 0; device + 1 < rows.entering_from.size(); ++device) {
    const Index count = rows.receives(static_cast<int>(device));
    for (const RowArray& array : moves_.arrays) {
      copy_rows(packed, nullptr, array.after, rows.entering.data() + rows.entering_from[device], count, array.bytes);
      packed += count * array.bytes;
    }
  }
}

}  // namespace decompops::mpi

#include "mpi/sharing.h"

#include <algorithm>
#include <map>
#include <memory>

#include "cpu/linking.h"

namespace decompops::mpi {
namespace {

constexpr Index kPage = 4096;
constexpr Buffer kBuffersOfReceived[] = {kReceive, kReceive2};

bool is_received(Buffer buffer) { return buffer == kReceive || buffer == kReceive2; }

void insert(std::vector<int>& numbers, int number) {
  if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
}

// Replaces messages between one rank and the other ranks of its node by writes to shared memory.
class Sharer {
 public:
  Sharer(Program program, const std::function<Program(int)>& program_of, int place, const std::vector<int>& sharing)
      : program_of_(program_of),
        place_(place),
        sharing_(sharing),
        sections_(std::move(program.steps)),
        shared_{Program{{}, program.bytes}, {}, Received(program)} {}

  SharedProgram run() {
    shared_.awaited.resize(sections_.exchanges.size() + 1);
    bool packs = false;
    for (std::size_t i = 0; i < sections_.exchanges.size(); ++i) {
      receive(i);
      packs = send(i) || packs;
    }
    Program& program = shared_.program;
    if (!packs) program.bytes[kSend] = 0;
    if (!shared_.neighbours.empty()) {
      for (Buffer buffer : kBuffersOfReceived) program.bytes[buffer] = 0;
    }
    for (std::size_t i = 0; i < sections_.steps.size(); ++i) {
      for (Step& step : sections_.steps[i]) program.steps.push_back(std::move(step));
      if (i < sections_.exchanges.size()) program.steps.push_back(std::move(sections_.exchanges[i]));
    }
    return std::move(shared_);
  }

 private:
  struct Peer {
    int number;  // the index among the neighbours
    Sections sections;
  };

  // Null if the rank is on another node.
  Peer* peer_at(int place) {
    if (std::find(sharing_.begin(), sharing_.end(), place) == sharing_.end()) return nullptr;
    auto& peer = peers_[place];
    if (!peer) {
      Program program = program_of_(place);
      const int number = static_cast<int>(shared_.neighbours.size());
      shared_.neighbours.push_back({place, Received(program)});
      peer = std::make_unique<Peer>(Peer{number, Sections(std::move(program.steps))});
    }
    return peer.get();
  }

  void receive(std::size_t i) {
    std::map<int, int> received;
    auto is_written = [&](const Message& message) {
      Peer* peer = peer_at(message.peer);
      if (peer == nullptr) return false;
      const Message& sent = matching(peer->sections.exchanges[i].sends, place_, received[message.peer]++);
      if (!is_received(message.piece.buffer) || !may_redirect(sent, message, sections_.steps[i])) return false;
      insert(shared_.awaited[i + 1], peer->number);
      return true;
    };
    auto& receives = sections_.exchanges[i].receives;
    receives.erase(std::remove_if(receives.begin(), receives.end(), is_written), receives.end());
  }

  // Returns whether messages are still packed.
  bool send(std::size_t i) {
    Exchange& exchange = sections_.exchanges[i];
    std::map<int, int> sent;
    bool packs = false;
    std::vector<Message> sends;
    for (const Message& message : exchange.sends) {
      Peer* peer = peer_at(message.peer);
      if (peer != nullptr) {
        const Message& received = matching(peer->sections.exchanges[i].receives, place_, sent[message.peer]++);
        if (is_received(received.piece.buffer) && may_redirect(message, received, peer->sections.steps[i])) {
          redirect(sections_.steps[i], message, received, peer->number, exchange.element);
          insert(shared_.awaited[i], peer->number);
          ++shared_.messages;
          shared_.sent_bytes += bytes_of(message, exchange.element);
          continue;
        }
      }
      packs = packs || message.piece.buffer == kSend;
      sends.push_back(message);
    }
    exchange.sends = std::move(sends);
    return packs;
  }

  const std::function<Program(int)>& program_of_;
  int place_;
  const std::vector<int>& sharing_;
  Sections sections_;
  std::map<int, std::unique_ptr<Peer>> peers_;
  SharedProgram shared_;
};

}  // namespace

Received::Received(const Program& program) {
  for (Buffer buffer : kBuffersOfReceived) {
    offset[buffer] = bytes;
    bytes += ceil_div(program.bytes[buffer], kPage) * kPage;
  }
}

SharedProgram share(Program program, const std::function<Program(int)>& program_of, int place,
                    const std::vector<int>& sharing) {
  std::size_t phases = 1;
  bool has_pieces = false;  // pieces are exchanged by messages
  for (const Step& step : program.steps) {
    phases += std::holds_alternative<Exchange>(step);
    has_pieces = has_pieces || std::holds_alternative<Start>(step);
  }
  if (!has_pieces && phases > 1 && !sharing.empty())
    return Sharer(std::move(program), program_of, place, sharing).run();
  const Received own(program);
  return {std::move(program), {}, own, std::vector<std::vector<int>>(phases)};
}

}  // namespace decompops::mpi

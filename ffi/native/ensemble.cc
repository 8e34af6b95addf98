#include "native/ensemble.h"

#include <algorithm>
#include <utility>

#include "cpu/linking.h"

namespace decompops::native {

Ensemble link(std::vector<Program> programs) {
  std::vector<Sections> sections;
  for (Program& program : programs) sections.emplace_back(std::exchange(program.steps, {}));
  const int places = static_cast<int>(programs.size());
  const std::size_t exchanges = sections[0].exchanges.size();
  Ensemble ensemble;
  std::vector<bool> packs(places);
  for (std::size_t i = 0; i < exchanges; ++i) {
    Phase copies(places);
    for (int sender = 0; sender < places; ++sender) {
      const Exchange& exchange = sections[sender].exchanges[i];
      std::vector<int> sent(places);
      for (const Message& send : exchange.sends) {
        Sections& other = sections[send.peer];
        const Message& receive = matching(other.exchanges[i].receives, sender, sent[send.peer]++);
        ++ensemble.messages;
        ensemble.sent_bytes += bytes_of(send, exchange.element);
        // A message is copied after the phase if it is not packed, or if the receiver still reads the memory for the
        // message in this phase.
        if (may_redirect(send, receive, other.steps[i])) {
          redirect(sections[sender].steps[i], send, receive, send.peer, exchange.element);
          continue;
        }
        packs[sender] = packs[sender] || send.piece.buffer == kSend;
        Piece from = send.piece;
        from.owner = sender;
        from.region = receive.piece.region;
        const bool stream = from.region.volume() * exchange.element >= kStreamBytes;
        copies[send.peer].push_back(Copy{
            {from.region, {from}}, {from.region, {receive.piece}}, exchange.element, false, stream, Number::other});
      }
    }
    Phase phase;
    for (Sections& own : sections) phase.push_back(std::move(own.steps[i]));
    ensemble.phases.push_back(std::move(phase));
    const bool is_empty = std::all_of(copies.begin(), copies.end(), [](const auto& steps) { return steps.empty(); });
    if (!is_empty) ensemble.phases.push_back(std::move(copies));
  }
  Phase last;
  for (Sections& own : sections) last.push_back(std::move(own.steps[exchanges]));
  ensemble.phases.push_back(std::move(last));
  for (int place = 0; place < places; ++place) {
    if (!packs[place]) programs[place].bytes[kSend] = 0;
  }
  ensemble.programs = std::move(programs);
  return ensemble;
}

}  // namespace decompops::native

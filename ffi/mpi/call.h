// The calls of operators, which all ranks of a mesh run in one order.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace decompops::mpi {

// One operator of one compiled program. `occurrence` counts the operators with the same fingerprint. Ranks that compile
// the same programs in the same Python threads get the same counts. `thread` is a hash of the thread's name.
struct Identity {
  std::uint64_t fingerprint = 0, occurrence = 0, thread = 0;
  bool operator==(const Identity& other) const {
    return fingerprint == other.fingerprint && occurrence == other.occurrence && thread == other.thread;
  }
};

// One execution of an operator. `details` distinguishes the operator from others with the same label. `run` returns
// whether the execution has ended. If `run` has waited for other ranks for longer than the given time, it returns
// false, and continues at the same point when it is called again. `done` gets the text of the error, which is empty if
// no error has occurred. `done` must not throw. A quick call may run in the thread that submits it.
struct Call {
  Identity identity;
  std::string label, details;
  bool is_quick = false;
  std::function<bool(double)> run;
  std::function<void(const std::string&)> done;
  std::thread::id submitter = {};
};

}  // namespace decompops::mpi

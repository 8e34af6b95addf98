// The programs of all devices of a mesh that lie in one process, made one.

#pragma once

#include <vector>

#include "cpu/program.h"

namespace decompops::native {

// What devices do between two exchanges, by their place in the mesh. Step number i of one may run beside step number i of
// all others.
using Phase = std::vector<std::vector<Step>>;

struct Ensemble {
  std::vector<Program> programs;  // without steps
  std::vector<Phase> phases;
  Index messages = 0, sent_bytes = 0;  // what would be sent, if they were in different processes
};

// Messages become memory: what one device would pack for another it writes to where the other one reads it, and what lies
// where it is sent from is copied from there.
Ensemble link(std::vector<Program> programs);

}  // namespace decompops::native

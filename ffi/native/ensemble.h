// One program, made from the programs of all devices of a mesh in one process.

#pragma once

#include <vector>

#include "cpu/program.h"

namespace decompops::native {

// The steps of each device between two exchanges, by the place of the device in the mesh. Step i of a device may run at
// the same time as step i of all other devices.
using Phase = std::vector<std::vector<Step>>;

struct Ensemble {
  std::vector<Program> programs;  // without steps
  std::vector<Phase> phases;
  Index messages = 0, sent_bytes = 0;  // as devices in different processes would send them
};

// Replaces messages by shared memory: a device writes the cells of a message directly to the place where the receiver
// reads them. Two kinds of messages are copied after the phase instead: messages that need no packing, from where their
// cells lie, and messages for which the receiver still reads the memory in the same phase.
Ensemble link(std::vector<Program> programs);

}  // namespace decompops::native

// The tags of messages in the communicator of a mesh.

#pragma once

namespace decompops::mpi {

constexpr int kData = 1, kAnnouncement = 2, kMemory = 3;

}  // namespace decompops::mpi

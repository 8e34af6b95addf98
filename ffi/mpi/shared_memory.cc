#include "mpi/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "mpi/messages.h"

namespace decompops::mpi {
namespace {

constexpr Index kPage = 4096;  // for the counters of a rank; data begin at the next page

[[noreturn]] void fail(const char* what) {
  throw Failure(std::string("memory that ranks share: ") + what + ": " + std::strerror(errno));
}

Index whole_for(Index bytes) { return kPage + ceil_div(bytes, kPage) * kPage; }

// The file of another process. The file has no name, and is found among the open files of that process.
struct Opened {
  explicit Opened(const MemoryFile& file)
      : number(open(("/proc/" + std::to_string(file.process) + "/fd/" + std::to_string(file.number)).c_str(),
                    O_RDWR | O_CLOEXEC)) {
    if (number < 0) fail("open");
  }
  ~Opened() { close(number); }
  Opened(const Opened&) = delete;
  const int number;
};

#ifdef MFD_CLOEXEC
int new_file() { return memfd_create("decompops", MFD_CLOEXEC); }
// Reserves the pages at once. If memory ran out later, the first process that writes to a page would be killed.
int allocate(int file, Index bytes) { return posix_fallocate(file, 0, bytes); }
#else
int new_file() {
  errno = ENOSYS;
  return -1;
}
int allocate(int, Index) { return ENOSYS; }
#endif

template <class Body>
bool attempt(const Body& body) {
  try {
    body();
    return true;
  } catch (const Failure&) {
    return false;
  }
}

}  // namespace

SharedMemory::SharedMemory() : file_{getpid(), new_file()} {
  if (file_.number < 0) fail("memfd_create");
  if (ftruncate(file_.number, kPage) != 0) fail("ftruncate");
  map(file_.number, kPage);
}

SharedMemory::SharedMemory(const MemoryFile& file) : file_(file) {
  const Opened opened(file);
  map(opened.number, kPage);
}

SharedMemory::~SharedMemory() {
  if (memory_ != nullptr) munmap(memory_, static_cast<std::size_t>(bytes_));
  if (file_.process == getpid() && file_.number >= 0) close(file_.number);
}

std::byte* SharedMemory::data() const { return static_cast<std::byte*>(memory_) + kPage; }

void SharedMemory::map(int file, Index bytes) {
  void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) fail("mmap");
  if (memory_ != nullptr) munmap(memory_, static_cast<std::size_t>(bytes_));
  memory_ = memory;
  bytes_ = bytes;
}

void SharedMemory::grow(Index bytes) {
  const Index whole = whole_for(bytes);
  if (whole <= bytes_) return;
  if (const int error = allocate(file_.number, whole); error != 0) {
    errno = error;
    fail("posix_fallocate");
  }
  map(file_.number, whole);
}

bool SharedMemory::find(Index bytes) {
  const Index whole = whole_for(bytes);
  if (whole <= bytes_) return true;
  const Opened opened(file_);
  struct stat about;
  if (fstat(opened.number, &about) != 0) fail("fstat");
  if (about.st_size < whole) return false;
  map(opened.number, whole);
  return true;
}

std::vector<int> ranks_that_share(MPI_Comm communicator) {
  int rank, size, all;
  MPI_Comm node;
  MPI_Comm_rank(communicator, &rank);
  check(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  MPI_Comm_size(node, &size);
  std::vector<int> ranks(size);
  std::vector<MemoryFile> files(size);
  MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, node);
  // All ranks of the node must reach the following collective calls, even if something fails on one of them.
  std::unique_ptr<SharedMemory> own;
  int works = attempt([&] {
    own = std::make_unique<SharedMemory>();
    own->finished() = static_cast<std::uint64_t>(rank) + 1;
  });
  const MemoryFile file = works ? own->file() : MemoryFile{0, -1};
  MPI_Allgather(&file, sizeof(file), MPI_BYTE, files.data(), sizeof(file), MPI_BYTE, node);
  works = works && attempt([&] {
            for (int i = 0; i < size; ++i) {
              if (SharedMemory(files[i]).finished() != static_cast<std::uint64_t>(ranks[i]) + 1)
                throw Failure("not the same");
            }
          });
  MPI_Allreduce(&works, &all, 1, MPI_INT, MPI_LAND, node);
  MPI_Comm_free(&node);
  return all ? ranks : std::vector<int>{rank};
}

}  // namespace decompops::mpi

#include "mpi/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "mpi/check.h"

namespace decompops::mpi {
namespace {

constexpr Index kPage = 4096;  // for the counters of a rank; data begin at the next page

[[noreturn]] void fail(const char* what) {
  throw Failure(std::string("memory that ranks share: ") + what + ": " + std::strerror(errno));
}

Index whole_for(Index bytes) { return kPage + ceil_div(bytes, kPage) * kPage; }

constexpr const char* kName = "decompops";

// Opens the file of a process. It has no name, and is found among the open files of that process. The address is
// checked first, because in another container it may be the address of any file.
int opened(const MemoryFile& file) {
  const std::string path = "/proc/" + std::to_string(file.process) + "/fd/" + std::to_string(file.number);
  const std::string target = std::string("/memfd:") + kName + " ";
  char found[64] = {};
  if (readlink(path.c_str(), found, sizeof(found) - 1) < 0) fail("readlink");
  if (std::string(found).rfind(target, 0) != 0) throw Failure("the ranks of this host do not see the same processes");
  const int number = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (number < 0) fail("open");
  return number;
}

#ifdef MFD_CLOEXEC
int new_file() { return memfd_create(kName, MFD_CLOEXEC); }
// Reserves the pages at once. If memory ran out later, the first process that writes to a page would be killed.
int allocate(int file, Index bytes) { return posix_fallocate(file, 0, bytes); }
#else
int new_file() {
  errno = ENOSYS;
  return -1;
}
int allocate(int, Index) { return ENOSYS; }
#endif

// Returns the text of the failure of `body`, or an empty text.
template <class Body>
std::string failure_of(const Body& body) {
  try {
    body();
    return "";
  } catch (const Failure& failure) {
    return failure.what();
  }
}

// The text of the first rank that has one.
std::string first_text(const std::string& own, MPI_Comm node) {
  int rank, size, first;
  MPI_Comm_rank(node, &rank);
  MPI_Comm_size(node, &size);
  const int mine = own.empty() ? size : rank;
  MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, node);
  char text[256] = {};
  if (first == rank) own.copy(text, sizeof(text) - 1);
  if (first < size) MPI_Bcast(text, sizeof(text), MPI_CHAR, first, node);
  return text;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

SharedMemory::SharedMemory() : own_(new_file()), file_{getpid(), own_.number()} {
  if (own_.number() < 0) fail("memfd_create");
  if (ftruncate(own_.number(), kPage) != 0) fail("ftruncate");
  map(own_.number(), kPage);
}

SharedMemory::SharedMemory(const MemoryFile& file) : file_(file) { map(Descriptor(opened(file)).number(), kPage); }

SharedMemory::~SharedMemory() {
  if (memory_ != nullptr) munmap(memory_, static_cast<std::size_t>(bytes_));
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
  if (const int error = allocate(own_.number(), whole); error != 0) {
    errno = error;
    fail("posix_fallocate");
  }
  map(own_.number(), whole);
}

bool SharedMemory::find(Index bytes) {
  const Index whole = whole_for(bytes);
  if (whole <= bytes_) return true;
  const Descriptor file(opened(file_));
  struct stat about;
  if (fstat(file.number(), &about) != 0) fail("fstat");
  if (about.st_size < whole) return false;
  map(file.number(), whole);
  return true;
}

Sharing ranks_that_share(MPI_Comm communicator) {
  int rank, size;
  MPI_Comm node;
  MPI_Comm_rank(communicator, &rank);
  check(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  MPI_Comm_size(node, &size);
  std::vector<int> ranks(size);
  std::vector<MemoryFile> files(size);
  MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, node);
  // All ranks of the node must reach the following collective calls, even if something fails on one of them.
  std::unique_ptr<SharedMemory> own;
  std::string problem = failure_of([&] {
    own = std::make_unique<SharedMemory>();
    own->finished() = static_cast<std::uint64_t>(rank) + 1;
  });
  const MemoryFile file = own ? own->file() : MemoryFile{0, -1};
  MPI_Allgather(&file, sizeof(file), MPI_BYTE, files.data(), sizeof(file), MPI_BYTE, node);
  problem = first_text(problem, node);
  if (problem.empty()) {
    problem = failure_of([&] {
      for (int i = 0; i < size; ++i) {
        if (SharedMemory(files[i]).finished() != static_cast<std::uint64_t>(ranks[i]) + 1)
          throw Failure("the ranks of this host do not see the same processes");
      }
    });
    // This call is also a barrier: a rank closes its file only after all other ranks have looked at it.
    problem = first_text(problem, node);
  }
  MPI_Comm_free(&node);
  return {problem.empty() ? ranks : std::vector<int>{rank}, problem};
}

}  // namespace decompops::mpi

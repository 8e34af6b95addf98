#include "cpu/api.h"

#include "mpi/registry.h"
#include "mpi/signals.h"
#include "mpi/stderr.h"

using namespace decompops;
using namespace decompops::mpi;

// Whether the copy of MPI that these kernels are linked to is the one that has been initialised.
DECOMPOPS_EXPORT int decompops_mpi_runs() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  return initialised;
}

// Registers the communicator of `key` by its Fortran handle. All of its ranks must call this. With `share`, the ranks
// of a node exchange through shared memory.
DECOMPOPS_EXPORT int decompops_add_communicator(int key, int handle, int share) {
  return guarded([&] { Registry::get().add_communicator(key, MPI_Comm_f2c(handle), share != 0); });
}

// The messages and bytes that this rank has sent so far, and the bytes of its work space.
DECOMPOPS_EXPORT int decompops_count(std::int64_t* counts) {
  return guarded([&] {
    const auto found = Registry::get().counts();
    std::copy(found.begin(), found.end(), counts);
  });
}

// Gives the line of a site, for messages.
DECOMPOPS_EXPORT int decompops_name_site(const char* thread, const char* site, const char* line, const char* place) {
  return guarded([&] { Registry::get().name_site(thread, site, {line, place}); });
}

// The number of ranks of a communicator that share memory with this rank, itself included, and why the others of this
// node do not. The text lives until `decompops_leave`.
DECOMPOPS_EXPORT int decompops_sharing(int key, int* ranks, const char** problem) {
  return guarded([&] {
    const Sharing& sharing = Registry::get().sharing(key);
    *ranks = static_cast<int>(sharing.ranks.size());
    *problem = sharing.problem.c_str();
  });
}

// Fails if this system does not let a process share memory.
DECOMPOPS_EXPORT int decompops_check_sharing() {
  return guarded([] {
    int is_over;
    MPI_Finalized(&is_over);
    if (is_over) throw Failure("MPI has been finalised");
    const std::string problem = ranks_that_share(MPI_COMM_SELF).problem;
    if (!problem.empty()) throw Failure(problem);
  });
}

// The number of announcements of calls that this rank has passed on so far.
DECOMPOPS_EXPORT int decompops_count_announcements(std::int64_t* count) {
  return guarded([&] { *count = Registry::get().announcements(); });
}

// The seconds until waiting ranks print a message, and until they give up (0: never).
DECOMPOPS_EXPORT int decompops_set_limits(double timeout, double limit) {
  return guarded([&] { limits() = {timeout, limit}; });
}

DECOMPOPS_EXPORT int decompops_watch_signals() {
  return guarded([] { watch_signals(Registry::get().rank()); });
}

DECOMPOPS_EXPORT int decompops_watch_sigterm() {
  return guarded([] { watch_sigterm(); });
}

DECOMPOPS_EXPORT int decompops_shorten_jax_errors() {
  return guarded([] { shorten_jax_errors(); });
}

// Tells the other ranks that this rank cannot continue. Python tells the user.
DECOMPOPS_EXPORT int decompops_give_up(const char* reason) {
  return guarded([&] {
    say_no_more();
    Registry::get().give_up(reason);
  });
}

// Whether a rank with a lower number has given up for the same reason.
DECOMPOPS_EXPORT int decompops_is_repeated(const char* reason, int* repeated) {
  return guarded([&] { *repeated = Registry::get().is_repeated(reason); });
}

// Ends the threads and frees the communicators. Every rank must call it before MPI is finalised.
DECOMPOPS_EXPORT int decompops_leave() {
  return guarded([] { Registry::get().leave(); });
}

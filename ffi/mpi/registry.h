// The MPI objects of a process. Communicators are found by their key, and teams by their communicator and ranks. All
// objects are freed before MPI is finalised.

#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cpu/workspace.h"
#include "mpi/team.h"

namespace decompops::mpi {

// The ranks of a mesh, and the work space of its operators.
struct Mesh {
  Mesh(MPI_Comm base, std::shared_ptr<Notices> notices, const std::vector<int>& ranks, const std::vector<int>& node,
       Order::IsCompiled is_compiled)
      : team(base, std::move(notices), ranks, node, std::move(is_compiled)) {}
  Workspace workspace;
  Team team;
};

class Registry {
 public:
  // The registry of this process. It is never destroyed, because a forked child has the registry but not its threads.
  static Registry& get();

  // Registers a duplicate of a communicator under `key`. With `share`, the ranks of a node exchange through shared
  // memory.
  void add_communicator(int key, MPI_Comm communicator, bool share);
  // The mesh of these ranks. The first call makes it. Throws in a forked child.
  std::shared_ptr<Mesh> mesh_of(int key, const std::vector<int>& ranks);
  // How often this process has compiled an operator with this fingerprint before. `thread` is the Python thread that
  // compiles it.
  std::uint64_t count_occurrence(std::uint64_t fingerprint, std::uint64_t thread);
  // The line of the user's program at a site, such as `power.py:12`, and the lines of all functions around it.
  struct Lines {
    std::string line, place;
  };
  void name_site(const std::string& thread, const std::string& site, Lines lines);
  // The lines that Python has given to a site, or the site itself.
  Lines lines_of(const std::string& thread, const std::string& site);
  // Whether more than one Python thread has operators.
  bool has_several_threads() const { return has_several_threads_; }
  // Whether a program that this process has compiled contains the call.
  bool is_compiled(const Identity& identity);
  // Records that a program of a Python thread has reached an operator. `run` is XLA's number for the execution. Throws
  // if another program of this thread has reached an operator since the last operator of this program. In this case,
  // several threads have the same name.
  void enter(std::uint64_t thread, std::int64_t run);
  // The messages and bytes that this rank has sent so far, and the bytes of its work space.
  std::array<Index, 3> counts();
  // The number of announcements of calls that this rank has passed on so far.
  Index announcements();
  // Tells the other ranks that this rank cannot continue.
  void give_up(const std::string& reason);
  // Whether a rank with a lower number has given up for the same reason.
  bool is_repeated(const std::string& reason);
  // The ranks of a communicator that share memory with this rank, and why others of this node do not.
  const Sharing& sharing(int key);
  // Ends the threads and frees the communicators, together with all other ranks. A second call does nothing. A call in
  // a forked child does nothing, either.
  void leave();
  // This process' rank in the first communicator, or -1.
  int rank() const { return rank_; }
  bool is_forked() const;

 private:
  struct Communicator {
    MPI_Comm base;
    std::shared_ptr<Notices> notices;
    Sharing sharing;
  };
  struct Runs {
    std::optional<std::int64_t> current;
    std::vector<std::int64_t> ended;  // the most recent executions before the current one
  };

  std::mutex mutex_, leaving_;
  int process_ = 0, rank_ = -1;
  std::map<int, Communicator> communicators_;
  std::map<std::pair<int, std::vector<int>>, std::shared_ptr<Mesh>> meshes_;
  std::mutex calls_mutex_;  // separate, so that compiling does not wait for MPI
  std::map<std::uint64_t, std::uint64_t> occurrences_;
  // As many entries as there are calls of operators in the source of the program (decompops/_backend/native/caller.py).
  std::map<std::pair<std::string, std::string>, Lines> lines_;
  std::map<std::uint64_t, Runs> runs_;
  std::set<std::uint64_t> threads_;
  std::atomic<bool> has_several_threads_{false};
};

}  // namespace decompops::mpi

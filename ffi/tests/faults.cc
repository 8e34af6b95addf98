// Tests of ranks that run out of memory or threads. Each allocation fails in turn. No call may be lost or hang, and no
// call may return wrong cells without an error. ThreadSanitizer has allocations and threads of its own, so with it
// nothing fails, and the calls only run.

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <new>
#include <optional>

#include "mpi/executor.h"
#include "mpi/team.h"
#include "tests/transpose.h"

namespace {

std::atomic<long> allocations_left{-1};  // negative: no limit
std::atomic<bool> threads_fail{false};

[[maybe_unused]] bool fails() { return allocations_left >= 0 && allocations_left.fetch_sub(1) == 0; }

}  // namespace

#ifdef __SANITIZE_THREAD__
constexpr bool kCanFail = false;
#else
constexpr bool kCanFail = true;

__attribute__((noinline)) void* operator new(std::size_t size) {
  if (fails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*start)(void*), void* argument) {
  if (threads_fail) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, start, argument);
}
#endif

using namespace decompops;
using namespace decompops::mpi;

namespace {

// What one rank has in a trial: its own team, and blocks to work on.
class Trial {
 public:
  // If `on_node`, ranks write cells to each other's memory. Otherwise, they send messages.
  Trial(const Plan& plan, int rank, bool on_node)
      : plan_(plan), rank_(rank), size_(static_cast<int>(plan.ranks.size())), on_node_(on_node) {
    // Each trial has communicators of its own, because messages of a failed trial may still be under way.
    MPI_Comm base, copy;
    MPI_Comm_dup(MPI_COMM_WORLD, &base);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    notices_ = std::make_shared<Notices>(copy);
    team_ = std::make_unique<Team>(base, notices_, plan.ranks, plan.ranks, [](const Identity&) { return true; });
    input_ = cells_of(size_, rank, false);
    right_ = cells_of(size_, rank, true);
    found_.resize(right_.size());
  }

  ~Trial() {
    team_->stop();
    notices_->leave();
    team_->free();
  }

  // Runs the operator once, and returns whether it ended without an error. The allocation after `limit` others fails.
  bool run(long limit) {
    std::fill(found_.begin(), found_.end(), -1);
    auto call = std::make_shared<Call>();
    std::promise<void> ended;
    bool succeeded = false;
    int ends = 0;
    call->label = "a transpose of some cells, with a name too long for a short string";
    call->is_quick = true;
    std::optional<SharedProgram> program;
    std::optional<Executor> executor;
    const std::vector<int> node = on_node_ ? plan_.ranks : std::vector<int>();
    auto program_of = [&](int place) { return compile(plan_, 1, sizeof(std::int64_t), Number::i64, place, node); };
    call->run = [&](double longest) {
      if (!program) program = share(program_of(rank_), program_of, rank_, team_->memory().sharing());
      if (!executor) {
        executor.emplace(*program, team_->messages(), team_->memory(), 1, Planning::estimate, input_.data(),
                         found_.data(), workspace_);
      }
      return executor->run(longest);
    };
    call->done = [&](const std::string& error) {
      succeeded = error.empty();
      if (++ends == 1) ended.set_value();
    };
    auto future = ended.get_future();
    allocations_left = limit;
    bool submitted = true;
    try {
      team_->submit(call);
    } catch (const std::exception&) {
      submitted = false;
    }
    // A call that could not be submitted must not run: XLA has taken its buffers back.
    const auto status = future.wait_for(std::chrono::seconds(submitted ? 60 : 0));
    allocations_left = -1;
    if (submitted && status != std::future_status::ready) throw Failure("hangs");
    if (!submitted && status == std::future_status::ready) throw Failure("runs what was refused");
    if (ends > 1) throw Failure("ends twice");
    if (submitted && succeeded && found_ != right_) throw Failure("wrong cells without an error");
    return submitted && succeeded;
  }

 private:
  const Plan& plan_;
  int rank_, size_;
  bool on_node_;
  std::shared_ptr<Notices> notices_;
  std::unique_ptr<Team> team_;
  Workspace workspace_;
  std::vector<std::int64_t> input_, found_, right_;
};

// Whether a program still sends or receives messages although all ranks share memory.
bool has_messages(const Plan& plan, int rank, bool on_node) {
  const std::vector<int> node = on_node ? plan.ranks : std::vector<int>();
  auto program_of = [&](int place) { return compile(plan, 1, sizeof(std::int64_t), Number::i64, place, node); };
  std::vector<int> others;
  for (int other : plan.ranks) {
    if (other != rank) others.push_back(other);
  }
  for (const Step& step : share(program_of(rank), program_of, rank, others).program.steps) {
    const auto* start = std::get_if<Start>(&step);
    const auto* exchange = start != nullptr ? &start->exchange : std::get_if<Exchange>(&step);
    if (exchange != nullptr && !(exchange->sends.empty() && exchange->receives.empty())) return true;
  }
  return false;
}

int agreed(bool mine) {
  int all = mine;
  MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
  return all;
}

void check_results(bool condition, const char* what) {
  if (!condition) throw Failure(what);
}

// Lets each allocation fail in turn: in the first call of a team, or in the second call, which runs in the thread that
// submits it.
int allocation_failures(const Plan& plan, int rank, int size, bool on_node, bool in_second) {
  int trials = 0;
  for (long limit = 0;; ++limit) {
    bool all_succeeded = true;
    for (int victim = 0; victim < size; ++victim, ++trials) {
      Trial trial(plan, rank, on_node);
      if (in_second) check_results(agreed(trial.run(-1)), "the first call fails");
      const int succeeded = agreed(trial.run(rank == victim ? limit : -1));
      all_succeeded = all_succeeded && succeeded;
      // After a failure on one rank, all calls of the team fail on all ranks.
      const bool again = trial.run(-1);
      check_results(succeeded ? again : !again, "the next call does not end as the last one");
    }
    if (all_succeeded) return trials;
  }
}

void thread_failures(const Plan& plan, int rank, int size) {
  for (int victim = 0; victim < size; ++victim) {
    Trial trial(plan, rank, true);
    threads_fail = rank == victim;
    check_results(!trial.run(-1), "a call succeeds without a thread");
    threads_fail = false;
    check_results(!trial.run(-1), "the next call does not end as the last one");
  }
}

void work_space(int) {
  Workspace workspace;
  try {
    workspace.get(kSend, Index{1} << 46);
  } catch (const Failure& failure) {
    check_results(std::strstr(failure.what(), "no memory for ") != nullptr, failure.what());
    check_results(workspace.get(kSend, 100) != nullptr && workspace.bytes() > 0, "nothing is left");
    return;
  }
  throw Failure("there are 64 TiB of memory");
}

}  // namespace

int main(int count, char** arguments) {
  int threads, rank, size;
  MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &threads);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  limits().timeout = 30;
  try {
    struct Way {
      const char* name;
      Index pieces;
      bool on_node;
    };
    for (const Way& way : {Way{"shared memory", 0, true}, Way{"messages", 0, false}, Way{"three pieces", 3, true}}) {
      const bool expected = size > 1 && !(way.on_node && way.pieces == 0);
      check_results(has_messages(transpose(size, way.pieces), rank, way.on_node) == expected, way.name);
      int trials = 0;
      for (bool in_second : {false, true})
        trials += allocation_failures(transpose(size, way.pieces), rank, size, way.on_node, in_second);
      if (rank == 0) std::printf("failing allocations, %s: passed in %d trials\n", way.name, trials);
    }
    if (kCanFail) {
      thread_failures(transpose(size, 0), rank, size);
      work_space(rank);
    }
    if (rank == 0) std::printf("failing threads and work space: passed\n");
  } catch (const std::exception& error) {
    std::printf("rank %d: FAILED: %s\n", rank, error.what());
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}

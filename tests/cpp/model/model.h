#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

// A model checker: runs a few threads through the library's own code in every order that there is, within
// bounds.
//
// How. The sources under test, and the scenario itself, are compiled for the thread sanitizer, and hooks.cpp
// is in place of the sanitizer: so each atomic operation, with its memory order, each plain access, and each
// copy of bytes comes here, and no source is changed for it. Threads are real, because what happens at their
// end belongs to the story, but only one runs at a time. At each operation that another thread may notice,
// the scheduler chooses who goes on; and a load chooses among the stores that it may read. An execution is
// repeated with other choices until all were made (choices.h).
//
// Bounds. Options::preemptions says how often a thread that could go on is set aside; whoever waits or ends
// hands on for free. A thread that yields or sleeps waits until another one has stored something, or, if
// nobody can go on, looks again: its next load reads the newest store, and from the second time on all do. A
// thread that looks again and again in vain, threads of which none can go on, and an execution that does not
// end are findings.
//
// Memory (memory.h). Orders mean what C++20 says: happens-before with release sequences and fences,
// coherence, and the single order of sequentially consistent operations, which is the order of execution. One
// thing that C++ allows is missing: a load never reads a store that is executed later (load buffering), and
// the stores to one location have their order by execution. compare_exchange_weak never fails for nothing.
namespace model {

struct Scenario {
  // Before the threads of each execution: makes everything as it was. All of this happens before the threads.
  std::function<void()> setup;
  std::vector<std::function<void()>> threads;
  std::function<void()> finish;  // after the threads
  // The threads end with each execution, so that their thread-local objects do. Otherwise they are kept for
  // the next execution, which is faster.
  bool ends = false;
};

enum class Kind { load, store, update, fence };

// Operations that are given another memory order than the source says, to see that something fails then.
struct Weaker {
  Kind kind = Kind::load;
  std::memory_order order = std::memory_order_relaxed;
  const volatile void* where = nullptr;  // null: anywhere
  std::size_t size = 1;                  // bytes from `where` on
  std::optional<unsigned> thread = {};   // only of this one
};

struct Options {
  unsigned preemptions = 3;
  std::uint64_t most = 2'000'000;  // executions
  std::vector<Weaker> weaker = {};
};

struct Result {
  std::uint64_t executions = 0;
  bool exhaustive = false;  // everything within the bounds was tried
  std::string finding;      // empty: there is none
  std::string schedule;     // of the finding
  std::string story;        // of the finding: what each thread did, in order
};

Result explore(const Scenario& scenario, const Options& options = {});
// Repeats the execution that a finding's schedule tells of.
Result replay(const Scenario& scenario, const std::string& schedule, const Options& options = {});

// --- of objects that live until the program ends
// Plain accesses to these bytes are watched for data races.
void watch(const void* begin, std::size_t size);
// The bytes at `second` are those at `first`, mapped a second time.
void alias(const void* first, const void* second, std::size_t size);
// How stories call an object.
void name(const void* begin, std::size_t size, std::string called);
template <class T>
void name(const T& object, std::string called) {
  name(&object, sizeof object, std::move(called));
}

// --- for threads, and finish()
// What the scenario finds wrong.
void check(bool holds, const char* what);
// From now on, another thread does nothing any more, wherever it is, as if its process had ended or were
// stopped. What it did before happened before this. It must not be where it waits for others.
void stop(unsigned thread);
// Something outside of memory that one thread waits for and another one does, such as a byte in a pipe. It
// orders no memory. A thread that waits takes what was signalled.
class Signal {
 public:
  void send();
  void wait();
  void reset() noexcept { missing_ = 1; }

 private:
  int missing_ = 1;
};

// --- for test cases
// Explores the scenario, prints how much that was, and fails the test case if there is a finding or if not
// everything was tried. With FAB_SCHEDULE in the environment, replays that schedule instead and prints its
// story.
void holds(const char* title, const Scenario& scenario, Options options = {});
// Fails the test case unless there is a finding that contains `expected`, with these orders.
void fails(const char* title, const Scenario& scenario, const std::vector<Weaker>& weaker,
           const std::string& expected, Options options = {});

}  // namespace model

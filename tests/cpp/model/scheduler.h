#pragma once

#include <semaphore.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model/choices.h"
#include "model/memory.h"
#include "model/model.h"

namespace model {

// Runs the executions of one scenario, and takes what hooks.cpp gets from the threads.
class Scheduler {
 public:
  Scheduler(const Scenario& scenario, const Options& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  Result explore();
  Result replay(const std::string& schedule);

  // --- from threads
  std::uint64_t load(std::uintptr_t where, unsigned size, std::memory_order order);
  void store(std::uintptr_t where, unsigned size, std::uint64_t value, std::memory_order order);
  // `change` makes the new value of the old one, which is returned.
  template <class Change>
  std::uint64_t update(std::uintptr_t where, unsigned size, std::memory_order order, Change change) {
    order = begin(Kind::update, where, order);
    if (me().stopped) return memory_.newest(where, size);
    const std::uint64_t old = memory_.newest(where, size), value = change(old);
    memory_.update(self(), where, size, value, order);
    stored("updates", where, value, order);
    return old;
  }
  bool compare_exchange(std::uintptr_t where, unsigned size, std::uint64_t& expected, std::uint64_t value,
                        std::memory_order success, std::memory_order failure);
  void fence(std::memory_order order);
  void plain(std::uintptr_t where, std::size_t size, bool write);
  void lock(std::uintptr_t mutex);
  bool try_lock(std::uintptr_t mutex);
  void unlock(std::uintptr_t mutex);
  void yield();
  void wait(int& missing);
  void send(int& missing);
  void stop(unsigned thread);
  void fail(const std::string& what);
  // The thread of the caller has ended.
  void ended();

 private:
  enum class State { ready, yields, waits, ended };
  struct Worker {
    sem_t turn;
    std::thread thread;
    unsigned number = 0;
    State state = State::ready;
    const int* while_set = nullptr;  // State::waits
    std::uint64_t stores = 0;        // when it yielded
    unsigned in_vain = 0;            // how often it yielded since it stored anything
    bool stopped = false;            // its operations change nothing any more
    bool leaves = false;             // after the last execution
  };

  static unsigned self() noexcept;  // number of the calling thread
  Worker& me() noexcept { return *workers_[self()]; }
  void run_once();
  void start_threads();
  void stop_threads();
  void run(Worker& worker);
  bool can_go(const Worker& worker) const noexcept;
  std::vector<Worker*> others(const Worker& self) const;
  std::memory_order begin(Kind kind, std::uintptr_t where, std::memory_order order);
  void before(bool noticed);
  void leave();
  Worker& look_again();
  void hand_to(Worker& next);
  [[noreturn]] void give_up(const std::string& why);
  void stored(const char* what, std::uintptr_t where, std::uint64_t value, std::memory_order order);
  void tell(const std::string& what);
  Result result(bool exhaustive) const;

  const Scenario& scenario_;
  const Options& options_;
  Choices choices_;
  Memory memory_{choices_};
  std::vector<std::unique_ptr<Worker>> workers_;
  sem_t all_ended_;
  std::uint64_t executions_ = 0, step_ = 0;
  unsigned preemptions_ = 0;
  std::uint64_t quiet_ = 0;  // turns in a row that were given although nobody could go on
  bool abandoned_ = false, tells_ = false;
  std::string finding_, schedule_, story_;
};

// The scheduler that the calling thread belongs to, if it is to be watched now.
Scheduler* watching() noexcept;
// While this lives, what the calling thread does is not watched.
class Unwatched {
 public:
  Unwatched() noexcept;
  ~Unwatched();
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

// --- what the scenario has declared (declared.cpp)
std::uintptr_t first_address(std::uintptr_t address) noexcept;  // of what is mapped twice
bool is_watched(std::uintptr_t address, std::size_t size) noexcept;
std::string called(std::uintptr_t address);

}  // namespace model

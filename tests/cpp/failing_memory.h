#pragma once

#include <atomic>
#include <cstdint>

// Makes chosen allocations fail. Test programs named *_no_memory_test are linked with a global operator new
// that asks here; what they allocate with malloc or mmap does not count.
namespace fab::test {

// One run of a scenario in which the nth allocation throws std::bad_alloc, or returns null where it must not
// throw.
class FailingMemory {
 public:
  enum class Of : std::uint8_t {
    thread,
    process
  };  // whose allocations count: the constructing thread's, or all
  enum class Lack : std::uint8_t { once, lasting };  // only the nth one fails, or all that follow as well

  // `nth` counts from 1; 0: none fails.
  explicit FailingMemory(std::uint64_t nth, Of of = Of::thread, Lack lack = Lack::once) noexcept
      : nth_(nth), of_(of), lack_(lack) {}

  // Allocations count and fail while one of these exists. One at a time in a process.
  class Scope {
   public:
    explicit Scope(FailingMemory& memory) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  // Within a scope: what this thread allocates while one of these exists neither counts nor fails. For the
  // checks of a test, and for what a peer does on the same thread.
  class Spared {
   public:
    Spared() noexcept;
    ~Spared();
    Spared(const Spared&) = delete;
    Spared& operator=(const Spared&) = delete;
  };

  std::uint64_t made() const noexcept { return made_; }           // allocations that scopes have counted
  bool failed() const noexcept { return nth_ && made_ >= nth_; }  // whether one of them did

  // Called by operator new.
  static bool next_fails() noexcept;

 private:
  const std::uint64_t nth_;
  const Of of_;
  const Lack lack_;
  std::atomic<std::uint64_t> made_{0};
};

// Runs the scenario for every allocation that it makes within its scopes, each time with the next one
// failing, and at last once with none. Returns the number of allocations of that last run.
template <class Scenario>
std::uint64_t with_each_failing(Scenario scenario, FailingMemory::Of of = FailingMemory::Of::thread,
                                FailingMemory::Lack lack = FailingMemory::Lack::once) {
  for (std::uint64_t nth = 1;; ++nth) {
    FailingMemory memory(nth, of, lack);
    scenario(memory);
    if (!memory.failed()) return memory.made();
  }
}

}  // namespace fab::test

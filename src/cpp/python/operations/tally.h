#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "base/deadline.h"
#include "python/operations/failure.h"

namespace fab::python {

// The operations of one user of a context, for instance of one window towards one peer: which are open, which
// failed unseen, and whose callbacks are still to come. So its user flushes what is its own, however many
// share the context. Safe from any thread.
class Tally {
 public:
  // Embedded in an operation that is in flight. Numbers rise.
  struct Entry {
    Entry *before = nullptr, *after = nullptr;
    std::uint64_t number = 0;  // 0: none yet
  };

  void enter(Entry& entry);
  void leave(Entry& entry) noexcept;
  // It failed; also of one that ended before it was in flight.
  void fail(Entry& entry, const Failure& failure) noexcept;
  // The caller has seen how operation `number` failed. A flush that covers it tells of it all the same.
  void seen(std::uint64_t number) noexcept;
  // Its callbacks are to come; those of operation `number` have been called.
  void expect_call(Entry& entry);
  void called(std::uint64_t number) noexcept;

  // Begins a flush of all operations up to the number that it returns; end_flush() follows.
  std::uint64_t begin_flush() noexcept;
  void end_flush() noexcept;
  std::size_t open() const noexcept;
  bool ended(std::uint64_t up_to) const noexcept;                  // all operations up to that number
  bool called_all(std::uint64_t up_to) const noexcept;             // their callbacks
  bool wait_called(std::uint64_t up_to, Deadline deadline) const;  // the same, or out of time
  // The first failure of operations up to that number that nobody has seen before the flush; forgets it and
  // the others.
  std::optional<Failure> take_failure(std::uint64_t up_to);

 private:
  struct Unseen {
    std::uint64_t number;
    Failure failure;
    bool seen = false;  // while a flush was under way
  };
  static constexpr std::size_t kKept = 64;  // failures, the oldest

  void number(Entry& entry) noexcept {
    if (entry.number == 0) entry.number = ++latest_;
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable call_ended_;
  Entry *first_ = nullptr, *last_ = nullptr;
  std::size_t open_ = 0;
  std::uint64_t latest_ = 0;
  std::size_t flushes_ = 0;  // under way
  std::vector<Unseen> failures_;
  std::multiset<std::uint64_t> uncalled_;
};

}  // namespace fab::python

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "python/operations/failure.h"

namespace fab::python {

// The operations of one user of a context, for instance of one window towards one peer: which of them are
// open, which have failed unseen, and which still have to call callbacks. With it a user flushes only its own
// operations, however many users share the context. Safe from any thread.
class Tally {
 public:
  // A part of each operation in flight. Later operations have higher numbers.
  struct Entry {
    Entry *before = nullptr, *after = nullptr;
    std::uint64_t number = 0;  // 0: none yet
  };

  void enter(Entry& entry);
  void leave(Entry& entry) noexcept;
  // Notes a failure, even of an operation that ended before it was in flight.
  void fail(Entry& entry, const Failure& failure) noexcept;
  // The caller has seen how operation `number` failed. A flush that is under way and covers it still reports
  // it.
  void seen(std::uint64_t number) noexcept;
  // expect_call(): the operation has callbacks to call. called(): those of operation `number` have been
  // called.
  void expect_call(Entry& entry);
  void called(std::uint64_t number) noexcept;

  // Begins a flush of all operations up to the number that it returns; end_flush() follows.
  std::uint64_t begin_flush() noexcept;
  void end_flush() noexcept;
  std::size_t open() const noexcept;
  // Whether all operations up to that number have ended.
  bool ended(std::uint64_t up_to) const noexcept;
  // Whether the callbacks of all operations up to that number have been called.
  bool called_all(std::uint64_t up_to) const noexcept;
  // Waits for called_all(). Returns false when the time is over.
  bool wait_called(std::uint64_t up_to, Deadline deadline) const;
  // The first failure of operations up to that number that nobody had seen when the flush began. Forgets all
  // failures up to that number.
  std::optional<Failure> take_failure(std::uint64_t up_to);

 private:
  struct Unseen {
    std::uint64_t number;
    Failure failure;
    bool seen = false;  // the caller has seen it while a flush was under way
  };
  static constexpr std::size_t kKept = 64;  // failures that are kept; later ones are not

  void number(Entry& entry) noexcept FAB_REQUIRES(mutex_) {
    if (entry.number == 0) entry.number = ++latest_;
  }

  mutable Mutex mutex_;
  mutable std::condition_variable call_ended_;
  Entry* first_ FAB_GUARDED_BY(mutex_) = nullptr;
  Entry* last_ FAB_GUARDED_BY(mutex_) = nullptr;
  std::size_t open_ FAB_GUARDED_BY(mutex_) = 0;
  std::uint64_t latest_ FAB_GUARDED_BY(mutex_) = 0;
  std::size_t flushes_ FAB_GUARDED_BY(mutex_) = 0;  // under way
  std::vector<Unseen> failures_ FAB_GUARDED_BY(mutex_);
  std::multiset<std::uint64_t> uncalled_ FAB_GUARDED_BY(mutex_);
};

}  // namespace fab::python

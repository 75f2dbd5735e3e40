#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "base/memory/address_range.h"

namespace fab {

// A log in which one writer tells any number of readers which memory has gone, in the order in which it went.
// Each reader keeps its own position. A reader that falls far behind is told that everything may be gone.
//
// The writer never waits, takes no lock and allocates nothing: the thread that unmaps memory waits for the
// writer, and it may hold any lock, even that of malloc. The writer notes an event before it lets that thread
// go on. A reader that looks after the unmapping call has returned therefore sees the note, and waits the
// short time until the event itself is there.
class VanishLog {
 public:
  VanishLog() = default;
  VanishLog(const VanishLog&) = delete;
  VanishLog& operator=(const VanishLog&) = delete;

  // For the writer. Each note() is followed by one publish(), of an empty range if there was no event.
  void note() noexcept { noted_.fetch_add(1); }
  void publish(AddressRange range) noexcept {
    const std::uint64_t position = published_.load(std::memory_order_relaxed);
    Record& record = records_[position % kRecords];
    record.start.store(range.start, std::memory_order_release);
    record.length.store(range.length, std::memory_order_release);
    published_.store(position + 1, std::memory_order_release);
  }

  // For readers. A reader has something to read if this differs from its position.
  std::uint64_t noted() const noexcept { return noted_.load(std::memory_order_acquire); }
  // Calls `vanished(AddressRange)` for every event from `position` on. Returns the position after the last.
  template <class Vanished>
  std::uint64_t read(std::uint64_t position, const Vanished& vanished) const {
    const std::uint64_t end = noted();
    while (published_.load(std::memory_order_acquire) < end) std::this_thread::yield();
    for (; position != end; ++position) {
      const Record& record = records_[position % kRecords];
      const AddressRange range{.start = record.start.load(std::memory_order_acquire),
                               .length = record.length.load(std::memory_order_acquire)};
      if (noted() - position > kRecords) {  // the record was overwritten, maybe while it was read
        vanished(kEverything);
        return end;
      }
      vanished(range);
    }
    return end;
  }

  static constexpr AddressRange kEverything{.start = 0, .length = ~std::uint64_t{0}};

 private:
  static constexpr std::uint64_t kRecords = 1024;
  struct Record {
    std::atomic<std::uint64_t> start{0}, length{0};
  };
  alignas(64) std::atomic<std::uint64_t> noted_{0};  // alone on its line: every hit in a cache reads it
  alignas(64) std::atomic<std::uint64_t> published_{0};
  std::array<Record, kRecords> records_;
};

}  // namespace fab

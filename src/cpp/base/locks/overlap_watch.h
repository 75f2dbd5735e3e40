#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace fab {

// Notes when two threads are in one section at the same time, which only a defect of the lock around it can
// bring about. Tests switch it on; while it is off, a visit costs the load of a flag. Nothing here orders
// memory, so that a race detector still sees the race that the lock failed to prevent.
class OverlapWatch {
 public:
  // Begins to watch all sections of the process, and to count from 0.
  static void start() noexcept {
    overlaps.store(0, std::memory_order_relaxed);
    watching.store(true, std::memory_order_relaxed);
  }
  // How often a thread came while another was inside, since start().
  static std::uint64_t stop() noexcept {
    watching.store(false, std::memory_order_relaxed);
    return overlaps.load(std::memory_order_relaxed);
  }

  // A thread's stay in the section, which may be nested.
  class Visit {
   public:
    explicit Visit(OverlapWatch& section) noexcept {
      if (watching.load(std::memory_order_relaxed)) [[unlikely]]
        enter(section);
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    ~Visit() {
      if (entered_) [[unlikely]]
        entered_->visitor_.store(nullptr, std::memory_order_relaxed);
    }

   private:
    void enter(OverlapWatch& section) noexcept {
      static thread_local const char self = 0;
      const void* inside = nullptr;
      if (section.visitor_.compare_exchange_strong(inside, &self, std::memory_order_relaxed)) {
        entered_ = &section;
        std::this_thread::yield();  // a thread that the lock does not keep out gets its chance here
      } else if (inside != &self) {
        overlaps.fetch_add(1, std::memory_order_relaxed);
      }
    }
    OverlapWatch* entered_ = nullptr;  // the section that this visit has to leave; null: none
  };

 private:
  static inline std::atomic<bool> watching{false};
  static inline std::atomic<std::uint64_t> overlaps{0};
  std::atomic<const void*> visitor_{nullptr};
};

}  // namespace fab

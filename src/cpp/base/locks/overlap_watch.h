#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace fab {

// Notes when two threads are in one section at the same time, which only a defect of the lock around it can
// bring about. To be switched on by tests; otherwise a visit costs the load of a flag. Nothing here orders
// memory, so that a race detector still sees the race that the lock failed to prevent.
class OverlapWatch {
 public:
  // For all sections of the process. What is counted begins anew.
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
        std::this_thread::yield();  // to those whom the lock does not keep out
      } else if (inside != &self) {
        overlaps.fetch_add(1, std::memory_order_relaxed);
      }
    }
    OverlapWatch* entered_ = nullptr;  // to be left
  };

 private:
  static inline std::atomic<bool> watching{false};
  static inline std::atomic<std::uint64_t> overlaps{0};
  std::atomic<const void*> visitor_{nullptr};
};

}  // namespace fab

#include "base/process/thread_slot.h"

#include <atomic>
#include <bit>
#include <cstdint>

namespace fab {
namespace {

static_assert(kThreadSlots == 64, "one bit each");
std::atomic<std::uint64_t> used{0};

constexpr unsigned kUnclaimed = kThreadSlots + 1;
thread_local constinit unsigned slot = kUnclaimed;

struct Claim {
  Claim() noexcept {
    std::uint64_t seen = used.load(std::memory_order_relaxed);
    do {
      slot = static_cast<unsigned>(std::countr_one(seen));
      if (slot == kThreadSlots) return;
    } while (!used.compare_exchange_weak(seen, seen | std::uint64_t{1} << slot, std::memory_order_acquire,
                                         std::memory_order_relaxed));
  }
  ~Claim() {
    if (slot < kThreadSlots) used.fetch_and(~(std::uint64_t{1} << slot), std::memory_order_release);
    slot = kThreadSlots;  // for destructors of other thread-local objects that come later
  }
};

}  // namespace

unsigned thread_slot() noexcept {
  if (slot == kUnclaimed) thread_local const Claim claim;
  return slot;
}

}  // namespace fab

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "base/memory/mapping.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

// Memory that a device reaches, in slots of one size. The bytes of a transfer are copied to or from a slot.
// Used under the context's lock.
class StagingMemory {
 public:
  StagingMemory(std::int32_t slots, std::size_t slot_bytes);
  // `rights`: IBV_ACCESS_* of devices. Throws Error.
  void enroll(const Device& device, ibv_pd& protection_domain, int rights);
  // Valid after enroll().
  std::uint32_t key() const noexcept { return mr_->lkey; }

  bool has_free() const noexcept { return !free_.empty(); }
  // What waits for something else leaves so many slots to the others.
  bool half_free() const noexcept { return free_.size() * slot_bytes_ * 2 >= memory_.size(); }
  // Takes a free slot. has_free() must be true.
  std::int32_t take() noexcept {
    const std::int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  // Allocates nothing: the list has room for every slot.
  void give(std::int32_t slot) noexcept { free_.push_back(slot); }
  std::byte* at(std::int32_t slot) noexcept {
    return memory_.data() + static_cast<std::size_t>(slot) * slot_bytes_;
  }

 private:
  std::size_t slot_bytes_;
  Mapping memory_;
  OwnMr mr_;
  std::vector<std::int32_t> free_;
};

// Slots of two sizes. Small transfers are copied, unless their bytes are in the request itself (inline);
// longer ones are where registering the user's memory would take longer. Used under the context's lock.
class Staging {
 public:
  static constexpr std::size_t kSmallBytes = 4096, kLargeBytes = 64 * 1024;
  struct Slots {
    std::int32_t small, large;
  };

  // `rights`: IBV_ACCESS_* of devices. `device` and `protection_domain` must outlive this object. Throws
  // Error.
  Staging(const Device& device, ibv_pd& protection_domain, int rights, Slots slots);
  StagingMemory& small() noexcept { return small_; }
  // Registered at the first call. Null if the device takes no more memory; it is asked again after a while.
  StagingMemory* large() noexcept;

  // Where the bytes of an inline request wait until the queue pair has taken it: one place for each request
  // that a link posts at once.
  static constexpr std::size_t kAtOnce = 32, kInlineBytes = 256;
  std::byte* inline_copy(std::size_t request) noexcept { return inline_copies_[request].data(); }

 private:
  const Device& device_;
  ibv_pd& protection_domain_;
  const int rights_;
  const std::int32_t large_slots_;
  StagingMemory small_;
  std::optional<StagingMemory> large_;
  std::array<std::array<std::byte, kInlineBytes>, kAtOnce> inline_copies_;
  Deadline refused_until_{};
};

}  // namespace fab::verbs

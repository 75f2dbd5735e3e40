#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory/mapping.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

// Memory that a device reaches, in slots. The bytes of a small transfer are copied to or from a slot, which
// costs less than registering the user's memory. Used under the context's lock.
class StagingMemory {
 public:
  static constexpr std::size_t kSlotBytes = 4096;

  explicit StagingMemory(std::int32_t slots);
  // `rights`: IBV_ACCESS_* of devices. Throws Error.
  void enroll(const Device& device, ibv_pd& protection_domain, int rights);
  // Valid after enroll().
  std::uint32_t key() const noexcept { return mr_->lkey; }

  bool has_free() const noexcept { return !free_.empty(); }
  // What waits for something else leaves so many slots to the others.
  bool half_free() const noexcept { return free_.size() * kSlotBytes * 2 >= memory_.size(); }
  // Takes a free slot. has_free() must be true.
  std::int32_t take() noexcept {
    const std::int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  // Allocates nothing: the list has room for every slot.
  void give(std::int32_t slot) noexcept { free_.push_back(slot); }
  std::byte* at(std::int32_t slot) noexcept {
    return memory_.data() + static_cast<std::size_t>(slot) * kSlotBytes;
  }

 private:
  Mapping memory_;
  OwnMr mr_;
  std::vector<std::int32_t> free_;
};

}  // namespace fab::verbs

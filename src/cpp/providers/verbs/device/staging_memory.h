#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory/mapping.h"
#include "providers/verbs/device/device.h"

namespace fab::verbs {

// Memory that a device reaches, in slots: what small transfers move is copied to or from one, which costs
// less than registering the user's memory. Used under the context's lock.
class StagingMemory {
 public:
  static constexpr std::size_t kSlotBytes = 4096;

  explicit StagingMemory(std::int32_t slots);
  void enroll(const Device& device, ibv_pd& protection_domain);  // throws Error
  std::uint32_t key() const noexcept { return mr_->lkey; }       // once it is enrolled

  bool has_free() const noexcept { return !free_.empty(); }
  // A free one, if there is any.
  std::int32_t take() noexcept {
    const std::int32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give(std::int32_t slot) noexcept { free_.push_back(slot); }  // there was room for it
  std::byte* at(std::int32_t slot) noexcept {
    return memory_.data() + static_cast<std::size_t>(slot) * kSlotBytes;
  }

 private:
  Mapping memory_;
  OwnMr mr_;
  std::vector<std::int32_t> free_;
};

}  // namespace fab::verbs

#include "providers/verbs/device/staging_memory.h"

#include <utility>

namespace fab::verbs {

StagingMemory::StagingMemory(std::int32_t slots, std::size_t slot_bytes)
    : slot_bytes_(slot_bytes), memory_(Mapping::anonymous(static_cast<std::size_t>(slots) * slot_bytes)) {
  for (std::int32_t slot = slots; slot-- > 0;) free_.push_back(slot);
}

void StagingMemory::enroll(const Device& device, ibv_pd& protection_domain, int rights) {
  mr_.reset(library().reg_mr(&protection_domain, memory_.data(), memory_.size(), rights));
  if (!mr_) refuse(device, "access to memory");
}

Staging::Staging(const Device& device, ibv_pd& protection_domain, int rights, Slots slots)
    : device_(device),
      protection_domain_(protection_domain),
      rights_(rights),
      large_slots_(slots.large),
      small_(slots.small, kSmallBytes) {
  small_.enroll(device, protection_domain, rights);
}

StagingMemory* Staging::large() noexcept {
  if (large_) return &*large_;
  if (!refused_until_.never() && !refused_until_.passed()) return nullptr;
  try {
    StagingMemory slots(large_slots_, kLargeBytes);
    slots.enroll(device_, protection_domain_, rights_);
    return &large_.emplace(std::move(slots));
  } catch (const std::exception&) {
    constexpr std::chrono::seconds kAskAgain{10};
    refused_until_ = Deadline::in(kAskAgain);
    return nullptr;
  }
}

}  // namespace fab::verbs

#include "providers/verbs/device/staging_memory.h"

namespace fab::verbs {

StagingMemory::StagingMemory(std::int32_t slots)
    : memory_(Mapping::anonymous(static_cast<std::size_t>(slots) * kSlotBytes)) {
  for (std::int32_t slot = slots; slot-- > 0;) free_.push_back(slot);
}

void StagingMemory::enroll(const Device& device, ibv_pd& protection_domain, int rights) {
  mr_.reset(library().reg_mr(&protection_domain, memory_.data(), memory_.size(), rights));
  if (!mr_) refuse(device, "access to memory");
}

}  // namespace fab::verbs

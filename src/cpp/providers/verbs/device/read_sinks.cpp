#include "providers/verbs/device/read_sinks.h"

namespace fab::verbs {
namespace {

constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
constexpr Staging::Slots kSlots{.small = 32, .large = 8};

}  // namespace

ReadSinks::ReadSinks(const Device& device, DeviceRegions& regions)
    : domain_(open_protection_domain(device)),
      staging_(device, *domain_, kRights, kSlots),
      memory_(regions.open_cache_in(*domain_)) {}

RegistrationCache::Lease ReadSinks::lend(const void* at, std::uint64_t length) {
  return memory_->acquire({.start = reinterpret_cast<std::uint64_t>(at), .length = length},
                          {.rights = kRights});
}

}  // namespace fab::verbs

#pragma once

#include <cstdint>
#include <memory>

#include "fabric/registration/registration_cache.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/device/regions.h"
#include "providers/verbs/device/staging_memory.h"

namespace fab::verbs {

// Where the answers to gets from one peer arrive over iWARP. There the peer's device writes an answer under a
// key that the request has told it, so this memory has to let peers write. Its protection domain is that of
// the connection to this peer, and of no other one. A large get registers what it fills, for as long as it
// takes, and small gets have slots of their own. So the peer can write what its answers fill, and nobody can
// write anything else. lend() is safe from any thread; the rest is used under the context's lock.
class ReadSinks final {
 public:
  // Throws Error and std::bad_alloc. `regions` must outlive this object.
  ReadSinks(const Device& device, DeviceRegions& regions);

  ibv_pd& domain() const noexcept { return *domain_; }
  Staging& staging() noexcept { return staging_; }
  // As DeviceRegions::lend().
  RegistrationCache::Lease lend(const void* at, std::uint64_t length);

 private:
  OwnPd domain_;
  Staging staging_;
  std::unique_ptr<RegistrationCache> memory_;
};

}  // namespace fab::verbs

#pragma once

#include <memory>
#include <string>

#include "fabric/provider.h"
#include "fabric/registration/registration_cache.h"

namespace fab {

// The names in DomainOptions::settings that are about the registration cache.
inline constexpr const char* kCacheSettings[] = {"mr_cache", "mr_cache_monitor", "mr_cache_max_size",
                                                 "mr_cache_max_count", "mr_cache_merge_regions"};

// Whether a domain uses a registration cache, and with which monitor and limits. A setting of the domain
// comes before the variable of the environment (FI_MR_CACHE_*), and that comes before the default.
struct CacheSettings {
  // Throws Error(invalid) that names the wrong value. The switch mr_cache_merge_regions takes any value: what
  // is not yes is no.
  static CacheSettings of(const DomainOptions& options);

  bool quiet = false;   // mr_cache is "auto" and no monitor is named: a missing cache gives no warning
  bool wanted = false;  // mr_cache asks for a cache, or a monitor is named
  std::string monitor;  // "userfaultfd", "memhooks", "kdreg2" or "disabled"
  CacheLimits limits;
};

// A domain's cache, or why it has none.
struct DomainCache {
  std::unique_ptr<RegistrationCache> cache;
  std::string monitor = "disabled";  // the monitor in use
  std::string warning;               // why a cache that was wanted is missing; otherwise empty
};
DomainCache open_cache(const CacheSettings& settings, Enroller enroller);

}  // namespace fab

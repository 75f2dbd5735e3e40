#pragma once

#include <memory>
#include <string>

#include "fabric/provider.h"
#include "fabric/registration/registration_cache.h"

namespace fab {

// What DomainOptions::settings may say of the registration cache.
inline constexpr const char* kCacheSettings[] = {"mr_cache", "mr_cache_monitor", "mr_cache_max_size",
                                                 "mr_cache_max_count", "mr_cache_merge_regions"};

// Whether a domain uses a registration cache and which: its settings come first, then the environment
// (FI_MR_CACHE_*), then the defaults (MR-71 … MR-73, MR-77).
struct CacheSettings {
  // Throws Error(invalid) naming the value that is wrong. Only "merge" takes anything: what is not yes is no.
  static CacheSettings of(const DomainOptions& options);

  bool quiet = false;   // "auto" asked for one where it can be had: no warning where it cannot
  bool wanted = false;  // by mr_cache, or because a monitor is named
  std::string monitor;  // "userfaultfd", "memhooks", "kdreg2" or "disabled"
  CacheLimits limits;
};

// A domain's cache, or why it has none.
struct DomainCache {
  std::unique_ptr<RegistrationCache> cache;
  std::string monitor = "disabled";  // in force
  std::string warning;               // why there is no cache though one was wanted; else empty
};
DomainCache open_cache(const CacheSettings& settings, Enroller enroller);

}  // namespace fab

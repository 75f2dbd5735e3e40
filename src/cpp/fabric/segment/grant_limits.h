#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/deadline.h"
#include "base/locks/mutex.h"
#include "fabric/types/name.h"

namespace fab {

struct Requester;

// What a grant asks of a requester besides key, rights and bytes.
struct GrantLimits {
  std::uint32_t auth = 0;     // as RegionEntry::auth
  std::vector<Part> peers{};  // who may use it, in any order; empty: whoever has the key
  Deadline until{};
};

// The limits of the entries whose RegionEntry::auth is kAuthLimited. They are known to the owner of the table
// alone: only it knows who has proven to be whom, and it goes by its own clock. Safe from any thread.
class GrantLimitTable final {
 public:
  void add(std::uint32_t index, GrantLimits limits);
  void remove(std::uint32_t index) noexcept;
  bool admits(std::uint32_t index, const Requester& requester) const noexcept;

 private:
  std::shared_ptr<const GrantLimits> find(std::uint32_t index) const noexcept;

  mutable Mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<const GrantLimits>> limits_
      FAB_GUARDED_BY(mutex_);  // by index in the table
};

}  // namespace fab

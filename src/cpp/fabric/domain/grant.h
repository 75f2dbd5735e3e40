#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "base/locks/mutex.h"
#include "base/locks/small_mutex.h"
#include "fabric/segment/region_spans.h"
#include "fabric/types/name.h"

namespace fab {

class Counter;
class DomainCore;
class EmulatedRegion;

// What a grant gives away of its region.
struct GrantTerms {
  std::uint32_t access = 0;              // REMOTE_READ, REMOTE_WRITE or both
  std::uint64_t offset = 0, length = 0;  // bytes of the region
  std::vector<std::string> peers{};      // addresses of endpoints; empty: whoever has the key
  Deadline until{};
};

// A further key to a part of a region, which opens what its terms say and ends before the region or with it.
// It is made by grant_of(), and lives until revoke(), until its time is over, or until the region
// closes. Safe from any thread.
//
// It has an entry of its own in the region table, so that rights and bytes are judged as those of a region,
// on every link and by devices. If it is limited to peers or to a time, requests come to the owner as
// messages over every link, and the GrantLimitTable judges these as well.
class Grant final {
 public:
  // The region that a grant is made of, which stays open and as it is while the grant is made.
  struct Source {
    std::uint32_t index;                              // in the region table
    bool raw;                                         // its keys are raw ones
    const std::shared_ptr<EmulatedRegion>& emulated;  // where memory that is not coherent is emulated
    const RegionSpans& spans;                         // what is reachable, with region_flag::kSpans
  };
  // Throws Error: access, bounds or invalid for terms that the region cannot give; unreachable for a peer who
  // cannot prove who it is; no_memory.
  Grant(std::shared_ptr<DomainCore> domain, const Source& source, GrantTerms terms);
  ~Grant();
  Grant(const Grant&) = delete;
  Grant& operator=(const Grant&) = delete;

  const GrantTerms& terms() const noexcept FAB_LIFETIME_BOUND { return terms_; }
  RemoteRegion remote() const;  // what a peer needs; throws Error(closed) once the grant is over
  std::uint64_t key() const noexcept { return remote_.key; }
  // Whether no access may start any more.
  bool over() const { return over_.load() || terms_.until.passed(); }
  bool ended() const noexcept { return ended_.load(); }  // as well, none is running

  // From the first call on no access under the grant starts. True once none is running any more, and then for
  // good. False: out of time, call again.
  bool revoke(Deadline deadline);
  // The process id of a peer that revoke() waits for; 0: there is none.
  std::int32_t peer_inside() const;

  // --- for the region, which changes
  void bind(const Counter& counter);
  // Refuses peers until resume(), and returns when no access is running any more; false: out of time.
  bool suspend(Deadline deadline);
  void resume(const RegionSpans& spans);  // `spans` is what is reachable of the region
  void start_revoking();

 private:
  // Part of revoke() and of suspend(), under the lock.
  bool go_on_revoking(Deadline deadline);
  bool go_on_suspending(Deadline deadline);
  void set_spans(const RegionSpans& of_region);
  void end() noexcept;

  const std::shared_ptr<DomainCore> domain_;
  const GrantTerms terms_;
  const bool raw_;
  RemoteRegion remote_{};
  std::uint32_t index_ = 0;  // in the region table
  std::atomic<bool> over_{false};
  std::atomic<bool> ended_{false};  // the entry may be another one's
  SmallMutex mutex_;                // one thread at a time changes the entry
  bool suspended_ FAB_GUARDED_BY(mutex_) = false;
};

}  // namespace fab

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/locks/mutex.h"
#include "fabric/completion/counter.h"
#include "fabric/segment/segment.h"

namespace fab {

// The counters of what peers do through each context of a domain, as ContextRights::counters names them. Safe
// from any thread.
class RemoteCounters final {
 public:
  explicit RemoteCounters(Segment& segment) : segment_(segment) {}

  // Keeps these for the context in `slot`, which is about to open. Returns them as ContextRights has them.
  std::uint64_t note(std::uint16_t slot, std::shared_ptr<Counter> writes, std::shared_ptr<Counter> reads);

  // Runs `close`, which closes the context in `slot`, and lets go of its counters.
  template <class Close>
  void end(std::uint16_t slot, const Close& close) {
    segment_.header().context_rights.of[slot].counters.store(0);
    const std::vector<Noted> ended = take(slot);
    close();
    // A peer that is stopped in the middle of an access may raise a counter when it goes on. Then these are
    // not used for anything else.
    if (!ended.empty() && segment_.is_accessed()) keep(ended);
  }
  // The domain is closed.
  void clear() noexcept;

 private:
  struct Noted {
    std::uint16_t slot;
    std::shared_ptr<Counter> writes, reads;
  };
  std::vector<Noted> take(std::uint16_t slot);
  void keep(const std::vector<Noted>& ended);

  Segment& segment_;
  Mutex mutex_;
  std::vector<Noted> noted_ FAB_GUARDED_BY(mutex_), kept_ FAB_GUARDED_BY(mutex_);
};

}  // namespace fab

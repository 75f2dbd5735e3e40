#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "fabric/noncoherent/shadow_memory.h"

namespace fab {

// Follows one region through accesses of peers and synchronisation calls, and says which calls were missing
// or late. It does not see loads by the CPU, so it assumes that what is put will be read.
class SyncChecker {
 public:
  using Event = SyncReport::Event;
  explicit SyncChecker(std::uint32_t region) noexcept : region_(region) {}

  // A peer gets, or begins to put, where the CPU has stored `stored` (not empty) since the last call.
  void met(Event event, Extent stored);
  // A peer's put has completed.
  void put(Event event, Extent range);
  // A call was made, and had this effect; true if it was of use.
  bool called(SyncSide side, Extent range, const ShadowMemory::Effect& effect, SyncReports& found);
  // No call comes any more: those that are still due were missing.
  void finish(SyncReports& found);

 private:
  // A peer's access to bytes that the CPU has stored and that no call has synchronised since. `side` is the
  // call that was due.
  struct Meeting {
    SyncSide side;
    Event event;
    Extent range;
  };
  struct Put {
    std::uint64_t end;
    Event event;
  };
  SyncReport report(SyncReport::Kind kind, SyncSide side, Extent range, Event event) const noexcept;
  using Puts = std::map<std::uint64_t, Put>;  // by start; they do not overlap
  Puts::iterator first_put(Extent range);
  bool take_puts(Extent range);
  void drop_puts(Extent range);

  const std::uint32_t region_;
  std::vector<Meeting> meetings_;
  Puts puts_;  // completed, and not yet followed by a call
};

}  // namespace fab

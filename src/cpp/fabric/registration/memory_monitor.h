#pragma once

#include <string>

#include "base/memory/address_range.h"
#include "fabric/registration/vanish_log.h"

namespace fab {

// Notices that memory is unmapped, moved, shrunk or discarded. Thread-safe.
class MemoryMonitor {
 public:
  virtual ~MemoryMonitor() = default;
  // From now on the log tells when pages of `range` go away. The thread that takes them away finds this in
  // the log as soon as its call has returned, and so does every thread that hears of it from that thread.
  // Calls are counted: each that returns true is ended by one unwatch(). Returns false if this memory cannot
  // be watched.
  virtual bool watch(AddressRange range) noexcept = 0;
  virtual void unwatch(AddressRange range) noexcept = 0;
  virtual const VanishLog& log() const noexcept = 0;
};

// The monitor of this process, which uses userfaultfd(2). It is made on first use and lives until the process
// ends. A child of fork() makes its own. Throws Error(not_supported) that says why there is none.
MemoryMonitor& userfault_monitor();

}  // namespace fab

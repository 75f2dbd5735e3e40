#pragma once

#include <string>

#include "base/memory/address_range.h"
#include "fabric/registration/vanish_log.h"

namespace fab {

// Notices that memory is unmapped, moved, shrunk or discarded. Thread-safe.
class MemoryMonitor {
 public:
  virtual ~MemoryMonitor() = default;
  // From now on the log tells when pages of `range` go away. The thread that takes them away finds that in
  // the log as soon as its call has returned, and so does every thread that learns from it. Calls are
  // counted: each is ended by one unwatch(). False if this memory cannot be watched; then there is nothing to
  // end.
  virtual bool watch(AddressRange range) noexcept = 0;
  virtual void unwatch(AddressRange range) noexcept = 0;
  virtual const VanishLog& log() const noexcept = 0;
};

// The one of this process, by userfaultfd(2); made on first use and there until the process ends. A child of
// fork() makes its own. Throws Error(not_supported) saying why it cannot be had.
MemoryMonitor& userfault_monitor();

}  // namespace fab

#pragma once

// Order that ThreadSanitizer cannot see. Who makes it says so: after acquire() comes what was before
// release().
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace fab {

struct TsanOrder {
#ifdef __SANITIZE_THREAD__
  void release() noexcept { __tsan_release(this); }
  void acquire() noexcept { __tsan_acquire(this); }
#else
  void release() noexcept {}
  void acquire() noexcept {}
#endif
};

// It takes two mappings of one file for unrelated memory.
inline TsanOrder tsan_rings;
// A peer that tells the program here of what it put, or is told here of what to get, may do so through
// another process, where the sanitizer sees nothing. Two orders, so that contexts get none among themselves
// by it.
inline TsanOrder tsan_puts, tsan_stores;

}  // namespace fab

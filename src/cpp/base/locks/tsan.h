#pragma once

// An order between threads that ThreadSanitizer cannot see. The code that makes the order declares it here:
// what was done before release() comes before what is done after acquire().
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

// Rings in shared memory: the sanitizer takes two mappings of one file for unrelated memory.
inline TsanOrder tsan_rings;
// A peer may tell the program that it has put something, or learn what it may get, through another process,
// where the sanitizer sees nothing. Puts and stores have an order each, so that contexts get no order among
// themselves by it.
inline TsanOrder tsan_puts, tsan_stores;

}  // namespace fab

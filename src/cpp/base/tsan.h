#pragma once

// ThreadSanitizer takes two mappings of one file for unrelated memory, so within one process it does not see
// what is ordered through shared memory. Who orders something there says so: after tsan_acquire() comes what
// was before tsan_release().
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>

namespace fab {
inline char tsan_order;
inline void tsan_release() noexcept { __tsan_release(&tsan_order); }
inline void tsan_acquire() noexcept { __tsan_acquire(&tsan_order); }
}  // namespace fab
#else
namespace fab {
inline void tsan_release() noexcept {}
inline void tsan_acquire() noexcept {}
}  // namespace fab
#endif

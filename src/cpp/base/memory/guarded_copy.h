#pragma once

#include <cstddef>

#include "base/memory/copy_memory.h"
#include "base/memory/fault_guard.h"

// Sanitizers have to see the copies, and other processors have no such code yet. There, a guard is set up for
// each copy.
// gcc says so by a macro; its headers define a __has_feature() that knows of nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAB_SANITIZED 1
#elif defined(__has_feature)
#define FAB_SANITIZED \
  (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer))
#else
#define FAB_SANITIZED 0
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && !FAB_SANITIZED
#define FAB_SMALL_COPY 1
#else
#define FAB_SMALL_COPY 0
#endif

namespace fab {

#if FAB_SMALL_COPY
namespace detail {
// Copies like memcpy(), scalars in one access, and returns 0 if it met a fault. To set up a guard would take
// longer than such a copy. So the handler knows this code by the address at which the fault happened, and
// goes on behind it.
extern "C" [[gnu::visibility("hidden")]] int fab_small_copy(void* target, const void* source,
                                                            std::size_t size) noexcept;
}  // namespace detail
#endif

// Bytes of a copy that takes less time than to set up a guard.
constexpr std::size_t kSmallCopy = FAB_SMALL_COPY ? 256 : 0;

// Copies from and to memory of a user, as copy_memory() does. Returns false if any of it was not there; what
// was copied before the fault stays copied. Needs arm_fault_guard(). The two places must not overlap.
[[nodiscard]] inline bool copy_guarded(void* target, const void* source, std::size_t size) noexcept {
#if FAB_SMALL_COPY
  if (size <= kSmallCopy) return detail::fab_small_copy(target, source, size) != 0;
#endif
  return guarded([=] { copy_memory(target, source, size); });
}

// --- for the handler of faults, which has the `ucontext_t` of the thread
// Lets the thread go on behind the small copy in which it met a fault. False: it met that elsewhere.
bool leave_small_copy(void* context) noexcept;
// Whether the thread is in a small copy, or in a handler of a signal that came during one.
bool in_small_copy() noexcept;

}  // namespace fab

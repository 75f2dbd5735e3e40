#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstring>

#include "base/memory/copy_memory.h"
#include "base/memory/fault_guard.h"

// Sanitizers have to see the copies, and other processors have no such code yet. There, a guard is set up for
// each copy.
#if defined(__x86_64__) && defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FAB_SMALL_COPY 1
#endif
#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#undef FAB_SMALL_COPY
#endif
#endif

namespace fab {

#ifdef FAB_SMALL_COPY
namespace detail {
// Copies as copy_memory() does, and returns 0 if it met a fault. To set up a guard would take longer than
// such a copy. So the handler knows this code by the address at which the fault happened, and goes on behind
// it.
extern "C" [[gnu::visibility("hidden")]] int fab_small_copy(void* target, const void* source,
                                                            std::size_t size) noexcept;
constexpr std::size_t kSmallCopy = 512;
}  // namespace detail
#endif

// Copies from and to memory of a user, as copy_memory() does. Returns false if any of it was not there; what
// was copied before the fault stays copied. Needs arm_fault_guard().
[[nodiscard]] inline bool copy_guarded(void* target, const void* source, std::size_t size) noexcept {
#ifdef FAB_SMALL_COPY
  if (size <= detail::kSmallCopy) return detail::fab_small_copy(target, source, size) != 0;
#endif
  return guarded([=] { copy_memory(target, source, size); });
}

// For the handler of faults: lets the thread go on behind the copy, if the fault was in one. Else false.
bool leave_small_copy(ucontext_t& context) noexcept;

}  // namespace fab

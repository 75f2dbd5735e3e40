#pragma once

namespace fab {

inline constexpr unsigned kThreadSlots = 64;

// A number below kThreadSlots that no other living thread has, or kThreadSlots for a thread that found all of
// them taken. It names data that one thread writes without locked instructions. A thread keeps its number
// until it ends, and what it wrote is visible to the next holder.
unsigned thread_slot() noexcept;

}  // namespace fab

#pragma once

namespace fab {

inline constexpr unsigned kThreadSlots = 64;

// A number below kThreadSlots that no other living thread has, for data that one thread writes without locked
// instructions; kThreadSlots for threads that came too late to get one. A thread keeps its number until it
// ends, and what it wrote is visible to the next holder.
unsigned thread_slot() noexcept;

}  // namespace fab

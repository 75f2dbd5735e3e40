#pragma once

#include <cstdint>
#include <span>

// Makes chosen calls of the core fail: allocations (failing_memory.h), threads that are started, and system
// calls, which the linker sends to calls.cpp. Calls of libraries and of the device in the process do not
// count.
namespace fab::test {

// A kind of call, and one way in which it fails.
struct CallKind {
  const char* name;
  int error;  // errno; for an allocation and what has no errno it says nothing
};
std::span<const CallKind> call_kinds() noexcept;

// From now on the calls of this kind are counted, and the nth one fails, from 1; 0: none does.
void arm_calls(const CallKind& kind, std::uint64_t nth) noexcept;
void disarm_calls() noexcept;
// Of the last time that they were armed.
std::uint64_t calls_made() noexcept;

}  // namespace fab::test

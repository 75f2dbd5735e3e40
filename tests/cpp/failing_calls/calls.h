#pragma once

#include <cstdint>
#include <span>

#include "fabric/types/error.h"
#include "failing_memory.h"

// Makes chosen calls of the core fail: allocations (failing_memory.h), threads that are started, and system
// calls, which the linker sends to calls.cpp. Calls of libraries and of the device in the process do not
// count.
namespace fab::test {

// A kind of call, and one way in which it fails.
struct CallKind {
  const char* name;
  int error;             // errno; for an allocation and what has no errno it says nothing
  Errc also = Errc::ok;  // what it may be called, beside the errors of the system
  bool lasts = false;    // and so it may be called from then on
};
std::span<const CallKind> call_kinds() noexcept;

// From now on calls are counted, and the nth one of this kind, from 1, fails. Null: none does.
void arm_calls(const CallKind* kind, std::uint64_t nth) noexcept;
void disarm_calls() noexcept;
// Of the kind that was armed last.
Errc also_true() noexcept;
bool may_last() noexcept;
// How many there were of this kind, the last time that they were armed.
std::uint64_t calls_made(const CallKind& kind) noexcept;

// Whether this call fails, with errno set. For what stands in place of a call.
bool call_fails(const char* name) noexcept;

// While it lives, this thread does what devices and their libraries do: nothing fails. Threads that it starts
// are theirs.
class DeviceCode {
 public:
  DeviceCode() noexcept;
  ~DeviceCode();
  DeviceCode(const DeviceCode&) = delete;
  DeviceCode& operator=(const DeviceCode&) = delete;

 private:
  FailingMemory::Spared spared_;
};

}  // namespace fab::test

#pragma once

namespace fab::test {

// What the core calls in place of a function of libibverbs or librdmacm: it counts, may fail, and otherwise
// calls `real`. What such a function does itself is spared. Returns `real` for other functions.
void* device_call(const char* name, void* real) noexcept;

// Objects of the device in the process that are open; 0 without it.
int device_objects() noexcept;

}  // namespace fab::test

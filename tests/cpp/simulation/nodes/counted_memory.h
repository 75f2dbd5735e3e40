#pragma once

#include <cstdint>

namespace fab::sim {

// How many pieces of memory operator new has given out that were not returned. Counts in programs that are
// linked with counted_memory.cpp.
std::int64_t allocations() noexcept;

}  // namespace fab::sim

#pragma once

#include <cstdint>
#include <string_view>

#include "fabric/provider.h"

namespace fab::verbs {

// Which memory a device may write in any order (PCIe relaxed ordering). Some processors take what a device
// writes in order at a fraction of its speed. What is complete is there all the same. A device that updates a
// flag after it has written what the flag stands for needs the order, so memory that devices update can stay
// out.
enum class RelaxedOrdering : std::uint8_t { nowhere, without_atomics, everywhere };

// Whether these processors, which /proc/cpuinfo describes, are of a kind that needs it for full speed.
bool prefers_relaxed_ordering(std::string_view processors) noexcept;

// As "verbs_relaxed_ordering" asks. Throws Error where it asks for what the library does not have.
RelaxedOrdering relaxed_ordering(const DomainOptions& options);

}  // namespace fab::verbs

#pragma once

#include <cstdint>
#include <string_view>

#include "fabric/provider.h"

namespace fab::verbs {

// Which memory a device may write in any order (PCIe relaxed ordering). Some processors take what a device
// writes in order at a fraction of its speed. What this side's device has completed is there all the same,
// so `landing` is safe: memory that gets of this process fill, and that peers do not write. A peer that has
// put bytes, and puts a flag when they are complete, needs the order: only users who know that nobody does so
// can ask for `everywhere`.
enum class RelaxedOrdering : std::uint8_t { nowhere, landing, everywhere };

// Whether these processors, which /proc/cpuinfo describes, are of a kind that needs it for full speed.
bool prefers_relaxed_ordering(std::string_view processors) noexcept;

// As "verbs_relaxed_ordering" asks. Throws Error where it asks for what the library does not have.
RelaxedOrdering relaxed_ordering(const DomainOptions& options);

}  // namespace fab::verbs

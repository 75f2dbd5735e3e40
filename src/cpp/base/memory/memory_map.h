#pragma once

#include <vector>

#include "base/memory/address_range.h"

namespace fab {

// Whether all of `range` is mapped and its pages belong to this address space alone: anonymous memory,
// private or shared with children, and memory files of this library, which are sealed. Pages of other files
// can be cut off through the file, which nobody tells to those who mapped it.
bool pages_stay_until_unmapped(AddressRange range) noexcept;

// The parts of `range` that are mapped with access (reading, and writing too if `writable`), in order,
// touching ones joined. Throws std::system_error if the kernel does not tell.
std::vector<AddressRange> backed_parts(AddressRange range, bool writable);

}  // namespace fab

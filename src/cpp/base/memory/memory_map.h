#pragma once

#include <vector>

#include "base/memory/address_range.h"

namespace fab {

// Whether all of `range` is mapped and its pages belong to this address space alone: anonymous memory,
// private or shared with children, and memory files of this library, which are sealed. Other files may be
// truncated, and nobody tells those who mapped the pages that they are gone.
bool pages_stay_until_unmapped(AddressRange range) noexcept;

// The parts of `range` that are mapped for reading, or for writing too if `writable`. They are in order, and
// parts that touch are joined. Throws std::system_error if the kernel does not tell.
std::vector<AddressRange> backed_parts(AddressRange range, bool writable);

}  // namespace fab

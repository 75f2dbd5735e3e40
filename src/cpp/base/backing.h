#pragma once

#include <cstdint>
#include <vector>

namespace fab {

struct AddressSpan {
  std::uint64_t start, length;
};

// The parts of [start, start + length) of this process that are mapped with access (reading, and writing too
// if `writable`), in order, touching ones joined. Throws std::system_error if the kernel does not tell.
std::vector<AddressSpan> backed_spans(std::uint64_t start, std::uint64_t length, bool writable);

}  // namespace fab

#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/memory/mapping.h"

namespace fab {

// Memory that peers on the node map, and use by plain loads and stores.
struct SharedMemory {
  OwnFd file;
  Mapping mapping;
};

// `length` bytes, zeroed and page-aligned, freed with the last holder. Throws std::bad_alloc for a length
// that cannot be, and std::system_error.
std::shared_ptr<SharedMemory> allocate_shared(std::uint64_t length);

}  // namespace fab

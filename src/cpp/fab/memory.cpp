#include "fab/memory.h"

#include <stdexcept>
#include <string>

#include "base/memory/shared_memory.h"

namespace fab::FAB_INTERFACE_NAME {

Memory Memory::part(std::size_t offset, std::size_t size) const {
  if (offset > size_ || size > size_ - offset)
    throw std::out_of_range("bytes " + std::to_string(offset) + " to " + std::to_string(offset + size) +
                            " of " + std::to_string(size_));
  Memory part(data_ + offset, size, owner_);
  part.writable_ = writable_;
  part.file_ = file_;
  part.file_offset_ = file_offset_ + offset;
  return part;
}

Memory allocate(std::size_t size) {
  const auto shared = fab::allocate_shared(size);
  Memory memory(shared->mapping.data(), size, shared);
  memory.file_ = shared->file.get();
  return memory;
}

}  // namespace fab::FAB_INTERFACE_NAME

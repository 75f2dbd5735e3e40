#include "base/memory/shared_memory.h"

#include <algorithm>
#include <new>

namespace fab {

std::shared_ptr<SharedMemory> allocate_shared(std::uint64_t length) {
  const std::uint64_t page = page_size();
  const std::uint64_t rounded = (std::max<std::uint64_t>(length, 1) + page - 1) / page * page;
  if (rounded < length) throw std::bad_alloc();
  auto memory = std::make_shared<SharedMemory>();
  memory->file = make_memory_file("pyfab-memory", rounded);
  memory->mapping = Mapping::shared(memory->file.get(), 0, rounded);
  return memory;
}

}  // namespace fab

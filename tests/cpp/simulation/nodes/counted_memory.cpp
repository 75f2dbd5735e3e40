#include "simulation/nodes/counted_memory.h"

#include <cstdlib>
#include <new>

namespace {

std::int64_t living = 0;

void* counted(std::size_t size) noexcept {
  void* const memory = std::malloc(size ? size : 1);
  living += memory != nullptr;
  return memory;
}

void returned(void* memory) noexcept {
  living -= memory != nullptr;
  std::free(memory);
}

}  // namespace

std::int64_t fab::sim::allocations() noexcept { return living; }

void* operator new(std::size_t size) {
  if (void* const memory = counted(size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted(size); }
void* operator new(std::size_t size, std::align_val_t align) {
  const auto unit = static_cast<std::size_t>(align);
  void* const memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
  if (!memory) throw std::bad_alloc();
  ++living;
  return memory;
}
void* operator new[](std::size_t size, std::align_val_t align) { return operator new(size, align); }
void operator delete(void* memory) noexcept { returned(memory); }
void operator delete[](void* memory) noexcept { returned(memory); }
void operator delete(void* memory, std::size_t) noexcept { returned(memory); }
void operator delete[](void* memory, std::size_t) noexcept { returned(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { returned(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { returned(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { returned(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { returned(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { returned(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { returned(memory); }

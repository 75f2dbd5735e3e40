#include "failing_memory.h"

#include <cstdlib>
#include <new>

namespace fab::test {
namespace {

std::atomic<FailingMemory*> of_process{nullptr};
thread_local FailingMemory* of_thread = nullptr;
thread_local int spared = 0;

}  // namespace

FailingMemory::Scope::Scope(FailingMemory& memory) noexcept {
  if (memory.of_ == Of::process)
    of_process = &memory;
  else
    of_thread = &memory;
}

FailingMemory::Scope::~Scope() {
  of_process = nullptr;
  of_thread = nullptr;
}

FailingMemory::Spared::Spared() noexcept { ++spared; }
FailingMemory::Spared::~Spared() { --spared; }

bool FailingMemory::next_fails() noexcept {
  if (spared) return false;
  FailingMemory* const memory = of_thread ? of_thread : of_process.load();
  if (!memory) return false;
  const std::uint64_t number = ++memory->made_;
  return memory->nth_ && (memory->lack_ == Lack::once ? number == memory->nth_ : number >= memory->nth_);
}

}  // namespace fab::test

namespace {

void* get(std::size_t bytes, std::size_t alignment = 0) noexcept {
  if (fab::test::FailingMemory::next_fails()) return nullptr;
  if (bytes == 0) bytes = 1;
  if (alignment == 0) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* get_or_throw(std::size_t bytes, std::size_t alignment = 0) {
  if (void* const memory = get(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

using std::align_val_t, std::nothrow_t, std::size_t;

// Of all libraries, too. clang takes those with a size for functions like any others, which are hidden.
#pragma GCC visibility push(default)
void* operator new(size_t bytes) { return get_or_throw(bytes); }
void* operator new[](size_t bytes) { return get_or_throw(bytes); }
void* operator new(size_t bytes, const nothrow_t&) noexcept { return get(bytes); }
void* operator new[](size_t bytes, const nothrow_t&) noexcept { return get(bytes); }
void* operator new(size_t bytes, align_val_t to) { return get_or_throw(bytes, static_cast<size_t>(to)); }
void* operator new[](size_t bytes, align_val_t to) { return get_or_throw(bytes, static_cast<size_t>(to)); }
void* operator new(size_t bytes, align_val_t to, const nothrow_t&) noexcept {
  return get(bytes, static_cast<size_t>(to));
}
void* operator new[](size_t bytes, align_val_t to, const nothrow_t&) noexcept {
  return get(bytes, static_cast<size_t>(to));
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, align_val_t, const nothrow_t&) noexcept { std::free(memory); }
#pragma GCC visibility pop

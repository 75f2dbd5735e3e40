#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/fd.h"
#include "base/lifetime.h"

namespace fab {

// Owns one mmap()ed range. Move-only.
class Mapping {
 public:
  Mapping() noexcept = default;
  // The functions that map throw std::system_error.
  // A shared mapping of `length` bytes of `fd` from `offset` (page aligned).
  static Mapping shared(int fd, std::size_t offset, std::size_t length, bool writable = true);
  // `length` zeroed bytes of this process alone, which cost memory only once written. `huge_pages` asks for
  // huge pages where the system has them.
  static Mapping anonymous(std::size_t length, bool huge_pages = false);
  // The same at an address, unless something is there already; null: anywhere.
  static Mapping anonymous_at(void* address, std::size_t length);
  // `length` bytes of addresses without memory: whoever touches them meets a fault.
  static Mapping reserved(std::size_t length);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { reset(); }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> bytes() const noexcept FAB_LIFETIME_BOUND { return {data_, size_}; }
  void reset() noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// An anonymous file in memory that other processes of the same user can open through /proc/<pid>/fd/<fd>.
// Sparse: pages cost memory only once touched. Sealed against shrinking, so a mapper never meets SIGBUS.
OwnFd make_memory_file(const char* name, std::size_t length);

// Such a file that only its maker writes, through `mapping`: the kernel lets nobody map it for writing, or
// write to it, from now on. Throws std::system_error.
struct PublishedMemory {
  OwnFd file;
  Mapping mapping;
};
PublishedMemory make_published_memory(const char* name, std::size_t length);
// Whether the file behind `fd` is one of these.
bool is_published(int fd) noexcept;

std::size_t page_size() noexcept;

}  // namespace fab

#include "base/memory/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace fab {

namespace {

std::byte* map(int fd, std::size_t offset, std::size_t length, int protection, int flags,
               void* address = nullptr) {
  void* data = ::mmap(address, length, protection, flags | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return static_cast<std::byte*>(data);
}

}  // namespace

Mapping Mapping::shared(int fd, std::size_t offset, std::size_t length, bool writable) {
  Mapping mapping;
  mapping.data_ = map(fd, offset, length, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED);
  mapping.size_ = length;
  return mapping;
}

Mapping Mapping::anonymous(std::size_t length, bool huge_pages) {
  Mapping mapping;
  mapping.data_ = map(-1, 0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  mapping.size_ = length;
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (huge_pages && length >= kHugePage) ::madvise(mapping.data_, length, MADV_HUGEPAGE);
  return mapping;
}

Mapping Mapping::anonymous_at(void* address, std::size_t length) {
  Mapping mapping;
  const int where = address ? MAP_FIXED_NOREPLACE : 0;
  mapping.data_ = map(-1, 0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | where, address);
  mapping.size_ = length;
  return mapping;
}

Mapping Mapping::reserved(std::size_t length) {
  Mapping mapping;
  mapping.data_ = map(-1, 0, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS);
  mapping.size_ = length;
  return mapping;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void Mapping::reset() noexcept {
  if (data_) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

namespace {

OwnFd make_unsealed(const char* name, std::size_t length) {
  OwnFd fd(check_call(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create"));
  check_call(::fchmod(fd.get(), 0600), "fchmod");
  check_call(::ftruncate(fd.get(), static_cast<off_t>(length)), "ftruncate");
  return fd;
}

void seal_file(int fd, int more) {
  check_call(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | more),
             "fcntl(F_ADD_SEALS)");
}

}  // namespace

OwnFd make_memory_file(const char* name, std::size_t length) {
  OwnFd fd = make_unsealed(name, length);
  seal_file(fd.get(), 0);
  return fd;
}

PublishedMemory make_published_memory(const char* name, std::size_t length) {
  PublishedMemory made{make_unsealed(name, length), {}};
  made.mapping = Mapping::shared(made.file.get(), 0, length);
  seal_file(made.file.get(), F_SEAL_FUTURE_WRITE);
  return made;
}

bool is_published(int fd) noexcept {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_FUTURE_WRITE) != 0;
}

std::size_t page_size() noexcept {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace fab

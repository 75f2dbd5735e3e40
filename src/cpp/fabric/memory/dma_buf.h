#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/fd.h"
#include "base/lifetime.h"
#include "base/memory/address_range.h"
#include "base/memory/mapping.h"

namespace fab {

// A dma-buf (memory that the kernel shares between devices as a file) with addresses in this process. It is
// mapped where its exporter lets processors reach it. Else it is hidden: the addresses are reserved, whoever
// touches them meets a fault, and only devices that know the dma-buf reach its memory. Safe from any thread.
class DmaBuf final {
 public:
  // `length` bytes (none: all) from `offset`, a multiple of the page size, of `fd`, which is duplicated.
  // Throws Error(invalid), or std::system_error where descriptors or addresses run out.
  DmaBuf(int fd, std::uint64_t offset, std::optional<std::uint64_t> length);
  ~DmaBuf();
  DmaBuf(const DmaBuf&) = delete;
  DmaBuf& operator=(const DmaBuf&) = delete;

  int fd() const noexcept { return fd_.get(); }
  std::span<std::byte> bytes() const noexcept FAB_LIFETIME_BOUND { return memory_.bytes().subspan(offset_); }
  bool hidden() const noexcept { return hidden_; }
  bool writable() const noexcept { return writable_; }
  // Begins or ends accesses of processors to memory that is mapped; `flags` are those of DMA_BUF_IOCTL_SYNC.
  // False: call again. Throws Error(invalid) for a file that is no dma-buf, or std::system_error.
  bool sync(std::uint64_t flags) const;

  // The functions below search all dma-bufs that are open in this process. Where there are none, they cost
  // one load.
  struct Place {
    OwnFd fd;              // a duplicate
    std::uint64_t offset;  // of the range's first byte
    bool hidden;
  };
  // Where `range` lies, if one dma-buf holds all of it.
  static std::optional<Place> find(AddressRange range) noexcept;
  // Whether any byte of `range` lies in a dma-buf.
  static bool any_in(AddressRange range) noexcept;
  // Whether any byte of `range` lies in a hidden dma-buf.
  static bool hides(AddressRange range) noexcept {
    return hidden_count.load(std::memory_order_relaxed) != 0 && hides_any(range);
  }
  static bool any_hidden() noexcept { return hidden_count.load(std::memory_order_relaxed) != 0; }

 private:
  AddressRange range() const noexcept {
    return {.start = reinterpret_cast<std::uint64_t>(memory_.data()), .length = memory_.size()};
  }
  static bool hides_any(AddressRange range) noexcept;
  template <class Test>
  static bool search(AddressRange range, const Test& test) noexcept;

  static inline std::atomic<std::uint32_t> count{0}, hidden_count{0};
  const OwnFd fd_;
  const std::uint64_t offset_;
  bool hidden_ = false, writable_ = true;
  Mapping memory_;  // of the file from its first byte on: some exporters ignore the offset of a mapping
};

}  // namespace fab

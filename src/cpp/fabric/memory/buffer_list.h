#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "base/lifetime.h"

namespace fab {

// The buffers of a region. A single one, the usual case, needs no allocation.
class BufferList {
 public:
  BufferList() noexcept = default;
  BufferList(std::initializer_list<iovec> buffers) {
    for (const iovec& buffer : buffers) push_back(buffer);
  }
  void push_back(const iovec& buffer) {
    if (size_ == 0) {
      first_ = buffer;
    } else {
      if (!all_) all_ = std::make_unique<std::vector<iovec>>(1, first_);
      all_->push_back(buffer);
    }
    ++size_;
  }
  std::size_t size() const noexcept { return size_; }
  const iovec& front() const noexcept FAB_LIFETIME_BOUND { return first_; }
  std::span<const iovec> view() const noexcept FAB_LIFETIME_BOUND {
    return all_ ? std::span<const iovec>(*all_) : std::span(&first_, size_);
  }
  std::uint64_t bytes() const noexcept {
    std::uint64_t total = 0;
    for (const iovec& buffer : view()) total += buffer.iov_len;
    return total;
  }

 private:
  iovec first_{};
  std::size_t size_ = 0;
  std::unique_ptr<std::vector<iovec>> all_;  // null with fewer than two
};

}  // namespace fab

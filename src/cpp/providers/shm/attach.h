#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "fabric/types/types.h"

namespace fab::shm {

// Whether this process may use process_vm_readv/writev on `pid` (0: on itself). Moves nothing.
bool attach_allowed(std::int32_t pid) noexcept;

// Consecutive transfers of one kind, gathered into few system calls of cross-memory attach
// (process_vm_readv(2)).
class AttachBatch {
 public:
  static constexpr std::size_t kMaxTransfers = 256;

  void begin(std::int32_t pid, bool write) noexcept {
    pid_ = pid;
    write_ = write;
    transfers_ = local_count_ = remote_count_ = 0;
  }
  // Room for one more transfer of these numbers of pieces?
  bool fits(std::size_t local_pieces, std::size_t remote_pieces) const noexcept {
    return transfers_ < kMaxTransfers && local_count_ + local_pieces <= kMaxPieces &&
           remote_count_ + remote_pieces <= kMaxPieces;
  }
  // Where the pieces of the next transfer go; then add() with how many they were, and a verdict other than ok
  // if it is refused (no pieces then).
  iovec* local() noexcept { return local_.data() + local_count_; }
  iovec* remote() noexcept { return remote_.data() + remote_count_; }
  void add(std::size_t local_pieces, std::size_t remote_pieces, std::uint64_t length, Errc verdict) noexcept {
    local_count_ += static_cast<std::uint32_t>(local_pieces);
    remote_count_ += static_cast<std::uint32_t>(remote_pieces);
    parts_[transfers_++] = {local_count_, remote_count_, length, verdict};
  }
  std::size_t size() const noexcept { return transfers_; }

  // Moves the first tried() transfers; verdict(i) tells the outcome of each: `bounds` where memory is not
  // there, on either side. Returns ok if that is all of them, or why the rest was left: peer_lost,
  // not_supported (forbidden by the kernel).
  Errc run() noexcept;
  Errc verdict(std::size_t i) const noexcept { return parts_[i].verdict; }
  std::size_t tried() const noexcept { return tried_; }

 private:
  std::size_t join(std::size_t first) noexcept;

  struct Part {
    std::uint32_t local_end, remote_end;
    std::uint64_t length;
    Errc verdict;
  };
  std::int32_t pid_ = 0;
  bool write_ = false;
  std::uint32_t transfers_ = 0, local_count_ = 0, remote_count_ = 0;
  std::size_t tried_ = 0;
  std::array<iovec, kMaxPieces> local_, remote_, joined_;
  std::array<Part, kMaxTransfers> parts_;
};

}  // namespace fab::shm

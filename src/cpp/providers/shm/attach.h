#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/lifetime.h"
#include "fabric/segment/segment.h"
#include "fabric/types/types.h"

namespace fab::shm {

// Why this process may not use process_vm_readv/writev on `pid` (0: on itself): an errno, or 0 if it may.
// Moves nothing.
int attach_problem(std::int32_t pid) noexcept;

// Proves that a copy met the program that made a segment. The process may have become another program
// (execve), or another process may have its number by now. The proof is the first piece of each call: the
// kernel goes through the pieces in order, stops where there is no memory, and stays with one program for the
// whole call. So another program is not written to unless it happens to have memory where the segment was,
// and what is read from it is not taken for the peer's bytes. A look at the process afterwards would cost
// more, and could come too early: execve replaces the memory before it closes the descriptor of the segment.
class AttachProof {
 public:
  // `pid` is the process that made `segment`. `slot` is a slot of it that this process has claimed; null:
  // nothing will be written.
  AttachProof(std::int32_t pid, const Segment& segment, const std::uint8_t (&domain_id)[16],
              AccessSlot* slot) noexcept
      : pid_(pid),
        segment_(segment),
        domain_id_(domain_id),
        slot_(slot),
        number_(slot ? slot->proof.load() : 0) {}

  std::int32_t pid() const noexcept { return pid_; }
  // The proof's piece of the next call, on this side and on the peer's.
  iovec here(bool write) noexcept {
    return write ? iovec{&++number_, sizeof number_} : iovec{seen_, sizeof seen_};
  }
  iovec there(bool write) const noexcept {
    return write ? iovec{segment_.in_owner(&slot_->proof), sizeof number_}
                 : iovec{segment_.id_in_owner(), sizeof seen_};
  }
  // Whether a call that has moved the piece met the right program.
  bool holds(bool write) const noexcept {
    return write ? slot_->proof.load() == number_ : std::memcmp(seen_, domain_id_, sizeof seen_) == 0;
  }

 private:
  const std::int32_t pid_;
  const Segment& segment_;
  const std::uint8_t (&domain_id_)[16];
  AccessSlot* const slot_;
  std::uint64_t number_;  // of the last call that writes
  std::uint8_t seen_[16] = {};
};

// Consecutive transfers of one kind, gathered into few system calls of cross-memory attach
// (process_vm_readv(2)).
class AttachBatch {
 public:
  static constexpr std::size_t kMaxTransfers = 256;
  static constexpr std::size_t kMost = kMaxPieces - 1;  // pieces on either side, without the proof

  // The proof costs 0.4 us, a third of a small put or get. By default, calls that move less than this go
  // without it.
  static constexpr std::uint64_t kProven = 256 * 1024;  // bytes

  void begin(AttachProof& proof, bool write, std::uint64_t proven_from = kProven) noexcept {
    proof_ = &proof;
    write_ = write;
    proven_from_ = proven_from;
    bytes_ = 0;
    transfers_ = local_count_ = remote_count_ = 0;
  }
  // Whether there is room for one more transfer of so many pieces.
  bool fits(std::size_t local_pieces, std::size_t remote_pieces) const noexcept {
    return transfers_ < kMaxTransfers && local_count_ + local_pieces <= kMost &&
           remote_count_ + remote_pieces <= kMost;
  }
  // The caller puts the pieces of the next transfer here, and then calls add() with their numbers. A transfer
  // that is refused has no pieces, and a verdict other than ok.
  iovec* local() noexcept FAB_LIFETIME_BOUND { return local_.data() + 1 + local_count_; }
  std::span<iovec> local_room() noexcept FAB_LIFETIME_BOUND { return {local(), kMost - local_count_}; }
  std::span<iovec> remote_room() noexcept FAB_LIFETIME_BOUND { return {remote(), kMost - remote_count_}; }
  iovec* remote() noexcept FAB_LIFETIME_BOUND { return remote_.data() + remote_count_; }
  void add(std::size_t local_pieces, std::size_t remote_pieces, std::uint64_t length, Errc verdict) noexcept {
    local_count_ += static_cast<std::uint32_t>(local_pieces);
    remote_count_ += static_cast<std::uint32_t>(remote_pieces);
    bytes_ += length;
    ranges_[transfers_++] = {local_count_, remote_count_, length, verdict};
  }
  std::size_t size() const noexcept { return transfers_; }

  // Moves the transfers in order. Afterwards the first tried() of them have an outcome, which verdict(i)
  // tells: `bounds` where memory is not there, on either side. Returns ok if all were tried, or why the rest
  // was left: peer_lost (memory here may then hold bytes of another program) or not_supported (the kernel
  // forbids it).
  Errc run() noexcept;
  Errc verdict(std::size_t i) const noexcept { return ranges_[i].verdict; }
  std::size_t tried() const noexcept { return tried_; }

 private:
  std::size_t join(std::size_t first) noexcept;

  struct Range {
    std::uint32_t local_end, remote_end;
    std::uint64_t length;
    Errc verdict;
  };
  AttachProof* proof_ = nullptr;
  bool write_ = false;
  std::uint64_t proven_from_ = 0, bytes_ = 0;
  std::uint32_t transfers_ = 0, local_count_ = 0, remote_count_ = 0;
  std::size_t tried_ = 0;
  // The first element of `local_`, and of `joined_`, is kept for the proof.
  std::array<iovec, kMaxPieces> local_, remote_, joined_;
  std::array<Range, kMaxTransfers> ranges_;
};

}  // namespace fab::shm

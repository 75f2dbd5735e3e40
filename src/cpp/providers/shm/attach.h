#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "fabric/segment/segment.h"
#include "fabric/types/types.h"

namespace fab::shm {

// Whether this process may use process_vm_readv/writev on `pid` (0: on itself). Moves nothing.
bool attach_allowed(std::int32_t pid) noexcept;

// Tells by a copy whether it met the program that made a segment, and not another one that its process has
// become (execve) or that has its number by now. It is the first piece of each call, since the kernel goes
// through the pieces in order, stops where there is no memory, and stays with one program for the whole call.
// So another program is not written to unless it happens to have memory where the segment was, and what was
// read there is not taken for what was asked for. A look at the process afterwards would cost more, and might
// come before the descriptor of the segment goes.
class AttachProof {
 public:
  // `pid` has made `segment`. `slot`: there, claimed by this process; null: nothing will be written.
  AttachProof(std::int32_t pid, const Segment& segment, const std::uint8_t (&domain_id)[16],
              AccessSlot* slot) noexcept
      : pid_(pid),
        segment_(segment),
        domain_id_(domain_id),
        slot_(slot),
        number_(slot ? slot->proof.load() : 0) {}

  std::int32_t pid() const noexcept { return pid_; }
  // The piece, on either side, of the next call.
  iovec here(bool write) noexcept {
    return write ? iovec{&++number_, sizeof number_} : iovec{seen_, sizeof seen_};
  }
  iovec there(bool write) const noexcept {
    return write ? iovec{segment_.in_owner(&slot_->proof), sizeof number_}
                 : iovec{segment_.in_owner(segment_.header().domain_id), sizeof seen_};
  }
  // After a call that has moved the piece.
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
  static constexpr std::size_t kMost = kMaxPieces - 1;  // pieces on either side, beside the proof

  // The proof costs 0.4 us, a third of a small put or get, and is asked for where at least this is moved.
  static constexpr std::uint64_t kProven = 256 * 1024;  // bytes

  void begin(AttachProof& proof, bool write, std::uint64_t proven_from = kProven) noexcept {
    proof_ = &proof;
    write_ = write;
    proven_from_ = proven_from;
    bytes_ = 0;
    transfers_ = local_count_ = remote_count_ = 0;
  }
  // Room for one more transfer of these numbers of pieces?
  bool fits(std::size_t local_pieces, std::size_t remote_pieces) const noexcept {
    return transfers_ < kMaxTransfers && local_count_ + local_pieces <= kMost &&
           remote_count_ + remote_pieces <= kMost;
  }
  // Where the pieces of the next transfer go; then add() with how many they were, and a verdict other than ok
  // if it is refused (no pieces then).
  iovec* local() noexcept { return local_.data() + 1 + local_count_; }
  std::span<iovec> local_room() noexcept { return {local(), kMost - local_count_}; }
  std::span<iovec> remote_room() noexcept { return {remote(), kMost - remote_count_}; }
  iovec* remote() noexcept { return remote_.data() + remote_count_; }
  void add(std::size_t local_pieces, std::size_t remote_pieces, std::uint64_t length, Errc verdict) noexcept {
    local_count_ += static_cast<std::uint32_t>(local_pieces);
    remote_count_ += static_cast<std::uint32_t>(remote_pieces);
    bytes_ += length;
    ranges_[transfers_++] = {local_count_, remote_count_, length, verdict};
  }
  std::size_t size() const noexcept { return transfers_; }

  // Moves the first tried() transfers; verdict(i) tells the outcome of each: `bounds` where memory is not
  // there, on either side. Returns ok if that is all of them, or why the rest was left: peer_lost (which may
  // have been read from another program), not_supported (forbidden by the kernel).
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
  std::array<iovec, kMaxPieces> local_, remote_, joined_;  // the first local and joined one: the proof
  std::array<Range, kMaxTransfers> ranges_;
};

}  // namespace fab::shm

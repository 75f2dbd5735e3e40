#include "providers/shm/attach.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace fab::shm {

int attach_problem(std::int32_t pid) noexcept {
  // No process has memory at this address. A caller that may attach learns that (EFAULT). One that may not
  // attach is refused before the address is looked at (EPERM, ENOSYS).
  char byte;
  iovec local{&byte, 1}, remote{reinterpret_cast<void*>(8), 1};
  const bool failed = ::process_vm_readv(pid ? pid : ::getpid(), &local, 1, &remote, 1, 0) == -1;
  return failed && errno != EFAULT ? errno : 0;
}

// Puts the remote pieces from `first` on into `joined_`, behind the place of the proof, and returns the
// number of all. Adjacent pieces become one, because the kernel looks up pages anew for each piece.
std::size_t AttachBatch::join(std::size_t first) noexcept {
  std::size_t count = 1;
  for (std::size_t i = first; i < remote_count_; ++i) {
    iovec* last = count > 1 ? &joined_[count - 1] : nullptr;
    if (last && static_cast<std::byte*>(last->iov_base) + last->iov_len == remote_[i].iov_base)
      last->iov_len += remote_[i].iov_len;
    else
      joined_[count++] = remote_[i];
  }
  return count;
}

Errc AttachBatch::run() noexcept {
  std::uint32_t local = 0, remote = 0;
  const bool proves = bytes_ >= proven_from_;
  for (tried_ = 0; tried_ < transfers_;) {
    if (local == local_count_ || remote == remote_count_) {  // only empty or refused transfers are left
      tried_ = transfers_;
      break;
    }
    // The proof goes in front: into the first element, or in place of the last piece that is done with.
    iovec* const ours = local_.data() + local;
    std::size_t our_count = local_count_ - local + 1, their_count = join(remote);
    const iovec *from = ours, *to = joined_.data();
    if (proves) {
      ours[0] = proof_->here(write_);
      joined_[0] = proof_->there(write_);
    } else {
      ++from, ++to, --our_count, --their_count;
    }
    const auto moved = write_ ? ::process_vm_writev(proof_->pid(), from, our_count, to, their_count, 0)
                              : ::process_vm_readv(proof_->pid(), from, our_count, to, their_count, 0);
    Errc failure = Errc::bounds;
    if (moved < 0) {
      switch (errno) {
        case EFAULT:
          if (!proves) break;
          return Errc::peer_lost;  // the proof is not there
        case ESRCH:
          return Errc::peer_lost;
        case ENOMEM:
          failure = Errc::no_memory;
          break;
        default:
          return Errc::not_supported;
      }
    }
    const std::size_t proof = proves ? ours[0].iov_len : 0;
    if (proves && moved >= 0 && (std::cmp_less(moved, proof) || !proof_->holds(write_)))
      return Errc::peer_lost;
    // Transfers whose bytes have all moved succeeded. The kernel stops at memory that is not there, so the
    // next transfer failed.
    std::uint64_t left = moved < 0 ? 0 : static_cast<std::uint64_t>(moved) - proof;
    while (tried_ < transfers_ && (ranges_[tried_].verdict != Errc::ok || ranges_[tried_].length <= left)) {
      if (ranges_[tried_].verdict == Errc::ok) left -= ranges_[tried_].length;
      ++tried_;
    }
    if (tried_ < transfers_) ranges_[tried_++].verdict = failure;
    local = ranges_[tried_ - 1].local_end;
    remote = ranges_[tried_ - 1].remote_end;
  }
  return Errc::ok;
}

}  // namespace fab::shm

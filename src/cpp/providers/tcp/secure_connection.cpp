#include "providers/tcp/secure_connection.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/memory/guarded_copy.h"

namespace fab::tcp {
namespace {

// Copies as much of the pieces behind `skip` bytes as there is room for; stops where memory is not there.
std::size_t gather_plain(std::span<const iovec> pieces, std::size_t skip, std::span<std::byte> out) noexcept {
  std::size_t count = 0;
  for (const iovec& piece : pieces) {
    if (count == out.size()) break;
    const std::size_t before = std::min(skip, piece.iov_len);
    const std::size_t part = std::min(piece.iov_len - before, out.size() - count);
    const auto* const from = static_cast<const std::byte*>(piece.iov_base) + before;
    if (!copy_guarded(out.data() + count, from, part)) break;
    count += part;
    skip -= before;
  }
  return count;
}

std::size_t length_of_pieces(std::span<const iovec> pieces) noexcept {
  std::size_t all = 0;
  for (const iovec& piece : pieces) all += piece.iov_len;
  return all;
}

ssize_t fails_with(int error) noexcept {
  errno = error;
  return -1;
}

}  // namespace

ssize_t SecureConnection::send(std::span<const iovec> pieces) noexcept try {
  if (KernelRecords* const kernel = tls_->kernel()) return kernel->send(pieces);
  const std::size_t all = length_of_pieces(pieces);
  std::size_t done = 0;
  bool faulted = false;
  while (done < all) {
    const std::span<std::byte> place = tls_->place();
    if (place.empty()) break;
    const std::size_t count = gather_plain(pieces, done, place);
    faulted = count == 0;
    if (faulted) break;
    if (!tls_->seal(count)) return fails_with(EPIPE);
    done += count;
  }
  if (!tls_->push()) return fails_with(EPIPE);
  if (done == 0 && faulted) return fails_with(EFAULT);
  if (done == 0 && tls_->unsent()) return fails_with(EAGAIN);
  return static_cast<ssize_t>(done);
} catch (const std::bad_alloc&) {
  return fails_with(ENOMEM);
}

ssize_t SecureConnection::receive(std::span<const iovec> pieces) noexcept try {
  if (KernelRecords* const kernel = tls_->kernel()) return kernel->receive(pieces);
  tls_->begin_round();
  std::size_t done = 0;
  for (const iovec& piece : pieces) {
    for (std::size_t at = 0; at < piece.iov_len;) {
      if (opened_.empty()) opened_ = tls_->open();
      if (opened_.empty()) {
        if (done != 0) return static_cast<ssize_t>(done);
        const auto end = tls_->ended();
        if (!end) return fails_with(EAGAIN);
        if (*end == Tls::Step::gone) return 0;
        return fails_with(*end == Tls::Step::no_memory ? ENOMEM : EBADMSG);
      }
      const std::size_t part = std::min(piece.iov_len - at, opened_.size());
      std::byte* const to = static_cast<std::byte*>(piece.iov_base) + at;
      if (!copy_guarded(to, opened_.data(), part))
        return done != 0 ? static_cast<ssize_t>(done) : fails_with(EFAULT);
      opened_ = opened_.subspan(part);
      at += part;
      done += part;
    }
  }
  return static_cast<ssize_t>(done);
} catch (const std::bad_alloc&) {
  return fails_with(ENOMEM);
}

}  // namespace fab::tcp

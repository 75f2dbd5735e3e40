#include "base/queues/spsc_ring.h"

#include <algorithm>
#include <cstring>

namespace fab {
namespace {

// Moves up to `limit` bytes between the ring from `index` on and the pieces; `move(ring bytes, piece bytes,
// size)` copies.
template <class Move>
std::size_t scatter(std::span<std::byte> ring, std::uint64_t index, std::size_t limit,
                    std::span<const iovec> pieces, Move move) noexcept {
  std::size_t done = 0;
  for (std::size_t i = 0; i < pieces.size() && done < limit; ++i) {
    auto* piece = static_cast<std::byte*>(pieces[i].iov_base);
    for (std::size_t left = std::min(pieces[i].iov_len, limit - done); left;) {
      const std::size_t at = (index + done) & (ring.size() - 1);
      const std::size_t part = std::min(left, ring.size() - at);
      move(ring.data() + at, piece, part);
      piece += part;
      left -= part;
      done += part;
    }
  }
  return done;
}

}  // namespace

std::size_t RingWriter::room() noexcept {
  const std::uint64_t read = indices_.read.load(std::memory_order_seq_cst);
  if (read < read_ || read > written_) broken_ = true;
  if (broken_) return 0;
  read_ = read;
  return bytes_.size() - static_cast<std::size_t>(written_ - read_);
}

std::size_t RingWriter::write(const iovec* pieces, std::size_t count) noexcept {
  const std::size_t done =
      scatter(bytes_, written_, room(), {pieces, count},
              [](std::byte* ring, std::byte* piece, std::size_t size) { std::memcpy(ring, piece, size); });
  if (done == 0) return 0;
  written_ += done;
  indices_.written.store(written_, std::memory_order_release);
  return done;
}

bool RingWriter::wait_for_room(std::size_t bytes) noexcept {
  if (room() >= bytes) return true;
  indices_.writer_waits.store(1, std::memory_order_seq_cst);
  return room() >= bytes;
}

std::size_t RingReader::available() noexcept {
  const std::uint64_t written = indices_.written.load(std::memory_order_acquire);
  if (written < written_ || written - read_ > bytes_.size()) broken_ = true;
  if (broken_) return 0;
  written_ = written;
  return static_cast<std::size_t>(written_ - read_);
}

std::size_t RingReader::read(const iovec* places, std::size_t count) noexcept {
  const std::size_t done =
      scatter(bytes_, read_, available(), {places, count},
              [](std::byte* ring, std::byte* place, std::size_t size) { std::memcpy(place, ring, size); });
  if (done == 0) return 0;
  read_ += done;
  indices_.read.store(read_, std::memory_order_seq_cst);
  return done;
}

bool RingReader::writer_waits() noexcept {
  return indices_.writer_waits.load(std::memory_order_seq_cst) != 0 && indices_.writer_waits.exchange(0) != 0;
}

}  // namespace fab

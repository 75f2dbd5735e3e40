#include "providers/shm/eager_ring.h"

#include "base/locks/tsan.h"
#include "fabric/memory/local_memory.h"
#include "fabric/session/frames/frame.h"
#include "fabric/types/peer_id.h"

namespace fab::shm {
namespace {

constexpr std::uint64_t kLine = 64;

// Where the next `length` bytes begin, so that they lie on cache lines of their own and in one piece.
std::uint64_t begin_of(std::uint64_t end, std::uint64_t length) noexcept {
  const std::uint64_t begin = (end + kLine - 1) & ~(kLine - 1), left = kPayloadBytes - begin % kPayloadBytes;
  return length <= left ? begin : begin + left;
}

}  // namespace

void EagerWriter::look_at_taken() noexcept {
  const std::uint32_t taken = memory_.indices.taken.load(std::memory_order_acquire);
  if (taken == taken_ || next_ - taken > next_ - taken_) return;  // nothing new, or impossible
  taken_ = taken;
  free_ = ends_[(taken - 1) % kCells];
}

bool EagerWriter::push(const Transfer& transfer) noexcept {
  if (transfer.length > kLargestMessage) return false;
  const bool outside = transfer.length > kCellBytes;
  const std::uint64_t begin = outside ? begin_of(end_, transfer.length) : end_;
  const std::uint64_t end = outside ? begin + transfer.length : end_;
  if (!fits(end)) look_at_taken();
  if (!fits(end)) return false;
  EagerCell& cell = memory_.cells[next_ % kCells];
  const bool has_data = (transfer.flags & transfer_flag::kRemoteData) != 0;
  cell.length = static_cast<std::uint16_t>(transfer.length);
  cell.flags = static_cast<std::uint8_t>((has_data ? frame_flag::kRemoteData : 0) |
                                         (transfer.flags & transfer_flag::kTagged ? frame_flag::kTagged : 0));
  cell.zero = 0;
  cell.tag = transfer.key;
  cell.data = has_data ? transfer.data : 0;
  cell.group = static_cast<std::uint32_t>(transfer.remote);
  cell.offset = static_cast<std::uint32_t>(begin % kPayloadBytes);
  std::byte* const bytes = outside ? memory_.payloads + cell.offset : cell.bytes;
  if (!gather(transfer, bytes)) return false;  // which the stream finds, too, and tells
  end_ = end;
  skip();
  tsan_rings.release();
  cell.turn.store(next_, std::memory_order_release);
  return true;
}

const std::byte* EagerReader::look(MessageHead& head) const noexcept {
  tsan_rings.acquire();
  const EagerCell& cell = memory_.cells[next_ % kCells];
  // The compiler must not read a shared value twice.
  const auto once = [](const auto& shared) {
    return *const_cast<const volatile std::remove_cvref_t<decltype(shared)>*>(&shared);
  };
  constexpr std::uint8_t kKnown = frame_flag::kRemoteData | frame_flag::kTagged;
  const std::uint8_t flags = once(cell.flags);
  const std::uint32_t offset = once(cell.offset);
  head.tag = cell.tag;
  head.length = once(cell.length);
  head.data = cell.data;
  head.group = once(cell.group);
  head.tagged = (flags & frame_flag::kTagged) != 0;
  head.has_data = (flags & frame_flag::kRemoteData) != 0;
  if (head.length > kLargestMessage || (flags & ~kKnown) != 0 || head.group > kMaxGroupId) return nullptr;
  if (head.length <= kCellBytes) return cell.bytes;
  return offset <= kPayloadBytes - head.length ? memory_.payloads + offset : nullptr;
}

}  // namespace fab::shm

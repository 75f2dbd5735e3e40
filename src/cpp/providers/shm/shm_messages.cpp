#include "providers/shm/shm_messages.h"

#include <cstring>

#include "base/tsan.h"
#include "fabric/local_memory.h"
#include "fabric/peer_id.h"

namespace fab::shm {

bool MessageWriter::room() noexcept {
  if (next_ - taken_ < kCells) return true;
  const std::uint32_t taken = indices_.taken.load(std::memory_order_acquire);
  if (next_ - taken <= kCells) taken_ = taken;  // anything else is nonsense
  return next_ - taken_ < kCells;
}

bool MessageWriter::push(const FrameHeader& header, PieceCursor from) noexcept {
  if (header.total > kCellBytes || !room()) return false;
  MessageCell& cell = cells_[next_ % kCells];
  cell.length = static_cast<std::uint8_t>(header.total);
  cell.flags = header.flags;
  cell.zero = 0;
  cell.tag = header.key;
  cell.data = header.data;
  cell.group = static_cast<std::uint32_t>(header.remote);
  gather(from, cell.bytes, header.total);
  tsan_rings.release();
  cell.turn.store(++next_, std::memory_order_release);
  return true;
}

bool MessageReader::take(FrameHeader& header, std::byte* bytes) noexcept {
  tsan_rings.acquire();
  const MessageCell& cell = cells_[next_ % kCells];
  const auto once = [](const auto& shared) {  // the compiler may not look again
    return *const_cast<const volatile std::remove_cvref_t<decltype(shared)>*>(&shared);
  };
  const std::uint8_t length = once(cell.length);
  header = {.type = FrameType::message,
            .flags = once(cell.flags),
            .length = length,
            .key = cell.tag,
            .remote = once(cell.group),
            .total = length,
            .data = cell.data};
  constexpr std::uint8_t kKnown = frame_flag::kRemoteData | frame_flag::kTagged;
  if (length > kCellBytes || (header.flags & ~kKnown) != 0 || header.remote > kMaxGroupId) return false;
  std::memcpy(bytes, cell.bytes, length);
  skip();
  return true;
}

}  // namespace fab::shm

#include "fabric/session/frames/answers.h"

#include <cstring>
#include <new>
#include <utility>

namespace fab {

void Answers::give_failure(Errc error) noexcept {
  flush();
  tell({.type = FrameType::fail, .data = static_cast<std::uint64_t>(error)});
}

std::byte* Answers::room(std::uint64_t length) {
  flush();
  std::byte* at = output_.append(SessionOutput::Lane::answers, kHeaderBytes + length);
  encode({.type = FrameType::data, .flags = frame_flag::kLast, .length = static_cast<std::uint32_t>(length)},
         at);
  return at + kHeaderBytes;
}

void Answers::give(std::span<const std::byte> content) {
  std::byte* const at = room(content.size());
  if (!content.empty()) std::memcpy(at, content.data(), content.size());
}

void Answers::tell(const FrameHeader& header) noexcept try {
  output_.append_header(SessionOutput::Lane::answers, header);
} catch (const std::bad_alloc&) {
  output_.break_off();
}

void Answers::flush() noexcept {
  if (acks_ == 0) return;
  tell({.type = FrameType::ack, .total = std::exchange(acks_, 0)});
  of_requests_ = false;
}

bool Answers::can_wait() const noexcept {
  constexpr std::uint64_t kMany = 32;
  return acks_ != 0 && acks_ < kMany && !of_requests_;
}

void Answers::clear() noexcept {
  acks_ = 0;
  of_requests_ = false;
}

}  // namespace fab

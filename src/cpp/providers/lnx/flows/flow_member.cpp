#include "providers/lnx/flows/flow_member.h"

#include <utility>

namespace fab::lnx {

Errc FlowMember::on_request(const FrameHeader& frame) {
  switch (frame.type) {
    case FrameType::join:
      return on_join(frame);
    case FrameType::fence:
      return on_fence(frame);
    case FrameType::settled:
      return on_settled(frame);
    default:
      return Errc::protocol;
  }
}

Errc FlowMember::on_join(const FrameHeader& frame) {
  if (flow_) {  // the peer has begun a later flow, and uses the same stream for it
    if (!host_.at_rest()) return Errc::protocol;
    std::exchange(flow_, nullptr)->leave(*this);
  }
  const bool known = frame.flags & frame_flag::kRejoin;
  auto flow = flows_.open({frame.key, frame.remote}, known, host_.peer());
  if (!flow) {
    host_.answer(Errc::peer_lost, frame.type);
    return Errc::ok;
  }
  if (const Errc error = flow->join(RailNumber::unpack(frame.data), *this); error != Errc::ok) return error;
  flow_ = std::move(flow);
  host_.answer(Errc::ok, frame.type);
  return Errc::ok;
}

Errc FlowMember::on_fence(const FrameHeader& frame) noexcept {
  if (!flow_ || !flow_->fence(RailNumber::unpack(frame.data), *this)) return Errc::protocol;
  host_.answer(Errc::ok, frame.type);
  return Errc::ok;
}

Errc FlowMember::on_settled(const FrameHeader& frame) {
  if (!flow_) return Errc::protocol;
  flow_->settled(frame.total);
  if (frame.id != 0) flow_->message_settled(frame.id);
  host_.answer(Errc::ok, frame.type);
  return Errc::ok;
}

void FlowMember::leave() noexcept {
  if (flow_) flow_->leave(*this);
  flow_.reset();
  joined_ = false;
}

bool FlowMember::came(std::uint64_t number) {
  if (!flow_) return false;
  flow_->message_came(*this);
  return flow_->known(number) || flow_->was_announced(number);
}

Standing FlowMember::announce(std::uint64_t number, MessageOrigin& origin) {
  if (!flow_) return Standing::refused;
  flow_->message_came(*this);
  return flow_->announce(number, *this, origin);
}

}  // namespace fab::lnx

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
    if (!host().at_rest()) return Errc::protocol;
    move_to(nullptr);
  }
  const bool known = frame.flags & frame_flag::kRejoin;
  auto flow = flows_.open({frame.key, frame.remote}, known, host().peer());
  if (!flow) {
    host().answer(Errc::peer_lost, frame.type);
    return Errc::ok;
  }
  if (const Errc error = flow->join(RailNumber::unpack(frame.data), host()); error != Errc::ok) return error;
  move_to(std::move(flow));
  host().answer(Errc::ok, frame.type);
  return Errc::ok;
}

Errc FlowMember::on_fence(const FrameHeader& frame) noexcept {
  if (!flow_ || !flow_->fence(RailNumber::unpack(frame.data), host())) return Errc::protocol;
  host().answer(Errc::ok, frame.type);
  return Errc::ok;
}

Errc FlowMember::on_settled(const FrameHeader& frame) {
  if (!flow_) return Errc::protocol;
  flow_->settled(frame.total);
  if (frame.id != 0) flow_->message_settled(frame.id);
  host().answer(Errc::ok, frame.type);
  return Errc::ok;
}

// A rail of this side's own is told by Rails, which knows whether the peer was given up before.
void FlowMember::leave(Errc why) noexcept {
  Sender& sender = *host().peer();
  if (flow_ && !joined_ && why != Errc::canceled && sender.handle() != kNoPeer)
    flows_.tell_lost(
        {.type = EventType::link_lost, .error = why, .peer = sender.handle(), .link = sender.link()});
  move_to(nullptr);
  joined_ = false;
}

void FlowMember::move_to(std::shared_ptr<Flow> flow) noexcept {
  belongs_to(flow.get());
  const auto former = std::exchange(flow_, std::move(flow));
  if (former) former->leave(host());
}

}  // namespace fab::lnx

#include "fabric/session/flow_member.h"

#include <utility>

namespace fab {

Errc FlowMember::on_join(const FrameHeader& frame) {
  if (flow_) {  // a later flow of the same peer, begun before this stream stood
    if (!receiver_->at_rest()) return Errc::protocol;
    std::exchange(flow_, nullptr)->leave(*this);
  }
  FlowTable* const flows = end_.services.flows;
  const bool known = frame.flags & frame_flag::kRejoin;
  auto flow = flows ? flows->open({frame.key, frame.remote}, known, end_.services.sender) : nullptr;
  if (!flow) {
    end_.answers.give(flows ? Errc::peer_lost : Errc::not_supported, frame.type);
    return Errc::ok;
  }
  if (!flow->join(RailNumber::unpack(frame.data), *this)) return Errc::protocol;
  flow_ = std::move(flow);
  end_.answers.give(Errc::ok, frame.type);
  return Errc::ok;
}

Errc FlowMember::on_fence(const FrameHeader& frame) noexcept {
  if (!flow_ || !flow_->fence(RailNumber::unpack(frame.data), *this)) return Errc::protocol;
  end_.answers.give(Errc::ok, frame.type);
  return Errc::ok;
}

Errc FlowMember::on_settled(const FrameHeader& frame) {
  if (!flow_) return Errc::protocol;
  flow_->settled(frame.total);
  if (frame.id != 0) flow_->message_settled(frame.id);
  end_.answers.give(Errc::ok, frame.type);
  return Errc::ok;
}

void FlowMember::leave() noexcept {
  if (flow_) flow_->leave(*this);
  flow_.reset();
  joined_ = false;
}

bool FlowMember::took(const FrameHeader& frame) {
  if (!flow_ || frame.id == 0) return false;
  flow_->message_came(*this);
  return flow_->known(frame.id) || flow_->was_announced(frame.id);
}

Flow::Announced FlowMember::announce(const FrameHeader& frame, MessageOrigin& origin) {
  if (frame.id & kStreamOnly) return Flow::Announced::unknown;
  if (!flow_) return Flow::Announced::refused;
  flow_->message_came(*this);
  return flow_->announce(frame.id, *this, origin);
}

}  // namespace fab

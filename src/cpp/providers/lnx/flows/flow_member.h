#pragma once

#include <memory>

#include "providers/lnx/flows/flow_table.h"

namespace fab::lnx {

// The extension of a session whose stream may be one of several rails to the same peer (docs/rails.md). It
// makes the session a member of a flow, by which requests that carry a number are not done twice and messages
// are not taken twice, whichever rail they come over.
class FlowMember final : public Extension {
 public:
  // The table outlives this object.
  FlowMember(ExtensionHost& host, FlowTable& flows) : Extension(host), flows_(flows) {}

  Errc on_request(const FrameHeader& frame) override;
  void on_post(const FrameHeader& frame) noexcept override { joined_ |= frame.type == FrameType::join; }
  bool one_of_several() const noexcept override { return joined_ || flow_; }
  void leave(Errc why) noexcept override;

 private:
  Errc on_join(const FrameHeader& frame);
  Errc on_fence(const FrameHeader& frame) noexcept;
  Errc on_settled(const FrameHeader& frame);

  void move_to(std::shared_ptr<Flow> flow) noexcept;

  FlowTable& flows_;
  bool joined_ = false;         // this side has joined the stream to a flow of its own, at the peer
  std::shared_ptr<Flow> flow_;  // the flow of the peer that this stream is a rail of; null: none
};

}  // namespace fab::lnx

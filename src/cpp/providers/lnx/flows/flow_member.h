#pragma once

#include <memory>
#include <span>
#include <string>

#include "providers/lnx/flows/flow_table.h"

namespace fab::lnx {

// The extension of a session whose stream may be one of several rails to the same peer (docs/rails.md). It
// makes the session a member of a flow, by which requests that carry a number are not done twice and messages
// are not taken twice, whichever rail they come over.
class FlowMember final : public Extension, private Flow::Carrier {
 public:
  // The session and the table outlive this object.
  FlowMember(ExtensionHost& host, FlowTable& flows) : host_(host), flows_(flows) {}

  Errc on_request(const FrameHeader& frame) override;
  void on_post(const FrameHeader& frame) noexcept override { joined_ |= frame.type == FrameType::join; }
  bool one_of_several() const noexcept override { return joined_ || flow_; }

  bool may_come(std::uint64_t number) const noexcept override { return flow_ && flow_->may_come(number); }
  const PastOutcome* outcome(std::uint64_t number) const noexcept override { return flow_->outcome(number); }
  void make_room(std::size_t result_bytes) override { flow_->make_room(result_bytes); }
  void record(std::uint64_t number, Errc outcome, std::span<const std::byte> result) noexcept override {
    flow_->record(number, outcome, result);
  }
  ArrayCounts* arrays() noexcept override { return flow_ ? &flow_->arrays() : nullptr; }

  bool came(std::uint64_t number) override;
  Standing announce(std::uint64_t number, MessageOrigin& origin) override;
  Errc message_outcome(std::uint64_t number) const noexcept override {
    return flow_->message_outcome(number);
  }
  bool shares(std::uint64_t) const noexcept override { return flow_ != nullptr; }
  void fetching(std::uint64_t number, const Matched& matched) noexcept override {
    flow_->fetching(number, matched);
  }
  void done(std::uint64_t number, Errc error) noexcept override { flow_->done(number, error); }
  MessageOrigin* heir() noexcept override { return flow_.get(); }

  void leave() noexcept override;

 private:
  Errc on_join(const FrameHeader& frame);
  Errc on_fence(const FrameHeader& frame) noexcept;
  Errc on_settled(const FrameHeader& frame);

  // Flow::Carrier
  void cut() noexcept override { host_.cut(); }
  const std::string& link() const noexcept override { return host_.peer()->link(); }
  void resume(std::uint64_t number, const Matched& matched) noexcept override {
    host_.resume(number, matched);
  }

  ExtensionHost& host_;
  FlowTable& flows_;
  bool joined_ = false;         // this side has joined the stream to a flow of its own, at the peer
  std::shared_ptr<Flow> flow_;  // the flow of the peer that this stream is a rail of; null: none
};

}  // namespace fab::lnx

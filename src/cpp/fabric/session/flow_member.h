#pragma once

#include <memory>
#include <span>
#include <string>

#include "fabric/session/stream_end.h"

namespace fab {

// A session's part in a flow: its stream may be one of several rails to the same peer (docs/rails.md). Keeps
// requests that carry a number from being done twice, and messages from being taken twice, whichever rail
// they come on. Of a stream that is no rail all of it is empty.
class FlowMember final : private Flow::Carrier {
 public:
  // The messages that the session receives.
  class Receiver {
   public:
    // Goes on with an announced message that met its receive on another rail.
    virtual void resume(std::uint64_t number, const Matched& matched) noexcept = 0;
    virtual bool at_rest() const noexcept = 0;  // no announced message of the peer is under way

   protected:
    ~Receiver() = default;
  };

  explicit FlowMember(StreamEnd& end) : end_(end) {}
  FlowMember(const FlowMember&) = delete;
  FlowMember& operator=(const FlowMember&) = delete;
  void set_receiver(Receiver& receiver) noexcept { receiver_ = &receiver; }  // once, before all else

  void joins() noexcept { joined_ = true; }                          // this side asks to join
  bool one_of_several() const noexcept { return joined_ || flow_; }  // ways to the peer
  void leave() noexcept;

  // --- frames
  Errc on_join(const FrameHeader& frame);
  Errc on_fence(const FrameHeader& frame) noexcept;
  Errc on_settled(const FrameHeader& frame);

  // --- requests that happen once
  // False: no peer may send this one.
  bool may_come(const FrameHeader& frame) const noexcept {
    return !happens_once(frame) || (flow_ && flow_->may_come(frame.id));
  }
  // What came of the request, if it was done before.
  const Flow::Outcome* done_before(const FrameHeader& frame) const noexcept {
    return happens_once(frame) ? flow_->outcome(frame.id) : nullptr;
  }
  // Before it is done: once it was, nothing may keep its outcome from being remembered. Throws
  // std::bad_alloc.
  void prepare_to_remember(const FrameHeader& frame, std::size_t result) {
    if (happens_once(frame)) flow_->make_room(result);
  }
  void remember(const FrameHeader& frame, Errc outcome, std::span<const std::byte> result = {}) noexcept {
    if (happens_once(frame)) flow_->record(frame.id, outcome, result);
  }
  ArrayCounts& arrays() noexcept { return flow_ ? flow_->arrays() : arrays_; }

  // --- messages
  // Whether a small one was taken before, on whichever rail.
  bool took(const FrameHeader& frame);
  // Of one that is announced: whether it is new, or what the flow has made of it. Throws std::bad_alloc.
  Flow::Announced announce(const FrameHeader& frame, MessageOrigin& origin);
  Errc outcome_of(std::uint64_t message) const noexcept { return flow_->message_outcome(message); }
  void fetching(std::uint64_t message, const Matched& matched) noexcept {
    if (shares(message)) flow_->fetching(message, matched);
  }
  // Whether it is the flow's, and may come on other rails again.
  bool shares(std::uint64_t message) const noexcept { return flow_ && !(message & kStreamOnly); }
  void done(std::uint64_t message, Errc error) noexcept {
    if (shares(message)) flow_->done(message, error);
  }
  Flow* flow() noexcept { return flow_.get(); }  // takes messages over that this stream leaves

 private:
  void cut() noexcept override { end_.services.on_cut(); }
  const std::string& link() const noexcept override { return end_.services.sender->link(); }
  void resume(std::uint64_t number, const Matched& matched) noexcept override {
    receiver_->resume(number, matched);
  }

  StreamEnd& end_;
  Receiver* receiver_ = nullptr;
  bool joined_ = false;         // as a rail of a flow of this side
  std::shared_ptr<Flow> flow_;  // of the peer, whose rail this is
  ArrayCounts arrays_;          // of the peer, where there are no rails
};

}  // namespace fab

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/deadline.h"
#include "base/queues/linked_list.h"
#include "fabric/completion/event_queue.h"
#include "fabric/session/extension.h"
#include "providers/lnx/flows/flow.h"

namespace fab::lnx {

// The flows of a context.
class FlowTable final : public ExtensionMaker {
 public:
  // `keep`: the seconds for which a flow without rails is remembered. `on_alone` is called when there is a
  // flow without rails: expire() has to be called at once, and from time to time.
  FlowTable(ReceiveQueue& receives, EventOutlet& events, double keep, std::function<void()> on_alone)
      : receives_(receives), events_(events), keep_(in_nanoseconds(keep)), on_alone_(std::move(on_alone)) {}

  std::unique_ptr<Extension> make(ExtensionHost& host) override;
  // Returns the flow, which is made if it is new. Null: a later flow of the peer has ended this one, or the
  // peer came under another authorization key or public key, or the flow is not known although `must_know`,
  // or there are too many flows, in all or of this initiator. Of an initiator's flows without rails the
  // oldest is forgotten for a new one.
  std::shared_ptr<Flow> open(FlowId id, bool must_know, const std::shared_ptr<Sender>& initiator);
  // The link on which the messages of this peer come; empty if no message has come.
  std::string message_link(PeerId peer) const;
  // Forgets flows whose peers have been gone for long. Returns true while it has to be called again. `now` is
  // Ticker::attended(), so that peers are not blamed for an absence of this process.
  bool expire(std::chrono::nanoseconds now) noexcept;
  void tell_lost(const Loss& loss) noexcept { events_.tell_lost(loss); }

 private:
  static constexpr std::size_t kMost = 65536, kMostAlone = 4096, kMostOfOne = 64;
  struct WithoutRails;
  struct OfOne;
  struct Entry;
  // The flows of one initiator. Which lost its last rail later stands behind.
  struct Owned {
    LinkedList<Entry, OfOne> flows;
    std::size_t count = 0;
  };
  using Owners = std::map<std::pair<const AuthKey*, PublicKey>, Owned>;
  struct Entry : Linked<WithoutRails>, Linked<OfOne> {
    Entry(std::uint64_t of, std::uint64_t number, std::shared_ptr<Flow> made)
        : peer(of), epoch(number), flow(std::move(made)) {}
    const std::uint64_t peer;
    std::uint64_t epoch;
    std::shared_ptr<Flow> flow;
    Owners::iterator owner{};
    bool owned = false;  // by an initiator that has proven a public key
  };
  using Alone = LinkedList<Entry, WithoutRails>;
  void stands_alone(std::uint64_t peer) noexcept;
  void goes_last(Entry& entry) noexcept;
  void forget(const Entry& entry) noexcept;
  bool make_room_for(const Owned& owner) noexcept;

  ReceiveQueue& receives_;
  EventOutlet& events_;
  const std::chrono::nanoseconds keep_;
  const std::function<void()> on_alone_;
  const std::shared_ptr<std::size_t> held_ = std::make_shared<std::size_t>(0);  // bytes of all flows
  Owners owners_;
  std::unordered_map<std::uint64_t, Entry> flows_;  // by FlowId::peer
  // The flows without rails, in the order in which they lost the last one. A flow that a rail has joined
  // again stays in the list until expire().
  Alone alone_;
};

}  // namespace fab::lnx

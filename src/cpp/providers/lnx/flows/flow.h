#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/lifetime.h"
#include "fabric/messages/receive_queue.h"
#include "fabric/session/extension.h"

// What the target remembers of requests that come over several rails, so that a request which is repeated
// over another rail is done once (docs/rails.md). Everything here is used under the lock of one context.
namespace fab::lnx {

// Names the flow from one endpoint to another. A flow with a greater epoch ends the one before it: the
// streams of the old flow are cut before any request of the new one is served.
struct FlowId {
  std::uint64_t peer = 0;  // random, for each pair of endpoints
  std::uint64_t epoch = 0;
};

// A rail of a flow, and one of the streams that it has had: the first stream has incarnation 1, and each one
// that replaces it has a greater incarnation.
struct RailNumber {
  std::uint32_t slot = 0, incarnation = 0;
  std::uint64_t packed() const noexcept { return (std::uint64_t{slot} << 32) | incarnation; }
  static RailNumber unpack(std::uint64_t packed) noexcept {
    return {static_cast<std::uint32_t>(packed >> 32), static_cast<std::uint32_t>(packed)};
  }
};

inline constexpr std::uint32_t kMaxRails = 16;

// The requests of one initiator that carry numbers.
class Flow final : public PastRequests {
 public:
  static constexpr std::uint64_t kOver = ~std::uint64_t{0};  // as a mark: the initiator sends nothing more
  // The most that is kept for requests that may be repeated: bytes of results, and outcomes. Successes
  // without a result whose numbers follow each other count as one outcome.
  static constexpr std::size_t kMostResults = 16u << 20, kMostUnsettled = 32768;
  // Bytes that all flows of a table may hold for that together. Beyond it, a flow gets no more than its
  // share.
  static constexpr std::size_t kMostHeld = 256u << 20, kShareOfOne = 64u << 10;

  // `on_alone` is called when the last rail has left. `in_all`: the bytes that all flows of a table hold.
  Flow(ReceiveQueue& receives, std::shared_ptr<Sender> initiator, std::function<void()> on_alone,
       std::shared_ptr<std::size_t> in_all = std::make_shared<std::size_t>(0))
      : receives_(receives),
        initiator_(std::move(initiator)),
        on_alone_(std::move(on_alone)),
        in_all_(std::move(in_all)) {}
  ~Flow();
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // --- rails
  // A stream joins as this rail; the stream that was this rail before is cut. peer_lost: the initiator has
  // given this stream up, as the later one tells that has joined or the fence that has come over another
  // rail. protocol: there is no such rail.
  Errc join(RailNumber rail, ExtensionHost& session) noexcept;
  // The initiator tells over `from` that this rail is dead: its stream is cut. False: no peer may ask for
  // that.
  bool fence(RailNumber rail, const ExtensionHost& from) noexcept;
  // The stream is gone.
  void leave(const ExtensionHost& session) noexcept;
  void cut_all() noexcept;
  bool alone() const noexcept { return alone_; }  // no rail is left
  // The time at which a call of this first found that no rail is left, by the caller's clock; nothing if
  // there is a rail.
  std::optional<std::chrono::nanoseconds> alone_since(std::chrono::nanoseconds now) noexcept;
  bool over() const noexcept { return over_ && alone_; }
  std::size_t held() const noexcept { return held_; }  // bytes, for outcomes
  // The link on which the first message came; empty if no message has come.
  const std::string& message_link() const noexcept FAB_LIFETIME_BOUND { return message_link_; }
  Sender& initiator() noexcept { return *initiator_; }

  // --- PastRequests
  const PastOutcome* outcome(std::uint64_t number) const noexcept override;
  bool known(std::uint64_t number) const noexcept { return outcome(number) != nullptr; }
  bool is_stale(std::uint64_t number) const noexcept override { return number < mark_; }
  bool may_come(std::uint64_t number) const noexcept override;
  void record(std::uint64_t number, Errc error, std::span<const std::byte> result = {}) noexcept override;
  void make_room(std::size_t result) override;
  ArrayCounts& arrays() noexcept FAB_LIFETIME_BOUND override { return arrays_; }
  bool came(std::uint64_t number, const ExtensionHost& over) override;
  Standing announce(std::uint64_t number, ExtensionHost& over, MessageOrigin& origin) override;
  Errc message_outcome(std::uint64_t number) const noexcept override;
  bool was_announced(std::uint64_t number) const noexcept { return messages_.contains(number); }
  void fetching(std::uint64_t number, const Matched& matched) noexcept override;
  void done(std::uint64_t number, Errc error) noexcept override;

  // --- what the initiator knows
  // The outcomes of all requests with numbers below `mark`, so they can be forgotten.
  void settled(std::uint64_t mark) noexcept;
  // The outcome of this announced message. Throws std::bad_alloc.
  void message_settled(std::uint64_t number);

 private:
  struct Rail {
    std::uint32_t incarnation = 0;  // the greatest one that has joined or was fenced
    ExtensionHost* session = nullptr;
  };
  struct Noted {
    const ExtensionHost* session = nullptr;
    std::optional<Matched> matched{};
    std::optional<Errc> outcome{};
  };

  void count_held() noexcept;
  void announces(const ExtensionHost& over);
  void message_came(const ExtensionHost& over);

  // MessageOrigin, for unmatched messages whose rails are gone.
  void fetch(const Message& message, const Matched& matched) noexcept override;
  void release(const Message& message) noexcept override;
  void consumed(std::uint64_t) noexcept override {}

  ReceiveQueue& receives_;
  const std::shared_ptr<Sender> initiator_;
  const std::function<void()> on_alone_;
  std::array<Rail, kMaxRails> rails_;
  bool alone_ = true;
  std::optional<std::chrono::nanoseconds> alone_since_;
  std::string message_link_;
  // The outcomes of numbers from mark_ on. Requests that succeeded without a result are kept as runs of
  // numbers: the first number of a run, and the number behind its last one. All other outcomes are kept one
  // by one.
  using Runs = std::map<std::uint64_t, std::uint64_t>;
  using Outcomes = std::map<std::uint64_t, PastOutcome>;
  Runs done_;
  Outcomes outcomes_;
  Runs::node_type spare_run_;  // memory for the next run and for the next outcome
  Outcomes::node_type spare_outcome_;
  std::size_t result_bytes_ = 0;
  const std::shared_ptr<std::size_t> in_all_;
  std::size_t held_ = 0;  // bytes of it that are this flow's
  ArrayCounts arrays_;
  std::uint64_t mark_ = 0;
  bool over_ = false;
  std::unordered_map<std::uint64_t, Noted> messages_;  // announced messages that are not settled
  std::vector<const ExtensionHost*> announcers_;       // the sessions that these may name
};

}  // namespace fab::lnx

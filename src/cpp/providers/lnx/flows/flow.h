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

#include "fabric/messages/receive_queue.h"
#include "fabric/session/extension.h"

// What the target of requests that come over several rails remembers, so that a request that is repeated on
// another rail is done once (docs/rails.md). All used under the lock of one context.
namespace fab::lnx {

// From one endpoint to another. A flow ends those of smaller epochs: their streams are cut before anything of
// the new one is looked at.
struct FlowId {
  std::uint64_t peer = 0;  // random, for each pair of endpoints
  std::uint64_t epoch = 0;
};

// A rail of a flow, and the how-manyth stream on it.
struct RailNumber {
  std::uint32_t slot = 0, incarnation = 0;
  std::uint64_t packed() const noexcept { return (std::uint64_t{slot} << 32) | incarnation; }
  static RailNumber unpack(std::uint64_t packed) noexcept {
    return {static_cast<std::uint32_t>(packed >> 32), static_cast<std::uint32_t>(packed)};
  }
};

inline constexpr std::uint32_t kMaxRails = 16;

// The requests of one initiator that carry numbers.
class Flow final : public MessageOrigin {
 public:
  // A stream on which they come. Ends itself, and calls Flow::leave(), when it is cut.
  class Carrier {
   public:
    virtual void cut() noexcept = 0;
    virtual const std::string& link() const noexcept = 0;  // "tcp.0"
    // Goes on with an announced message that met its receive on another rail.
    virtual void resume(std::uint64_t number, const Matched& matched) noexcept = 0;

   protected:
    ~Carrier() = default;
  };

  static constexpr std::uint64_t kOver = ~std::uint64_t{0};  // as a mark: nothing more will come
  // What is kept for repetitions: bytes of results; outcomes, of which a run of plain successes counts as
  // one.
  static constexpr std::size_t kMostResults = 16u << 20, kMostUnsettled = 32768;

  // `on_alone`: no rail is left, or the flow is over.
  Flow(ReceiveQueue& receives, std::shared_ptr<Sender> initiator, std::function<void()> on_alone)
      : receives_(receives), initiator_(std::move(initiator)), on_alone_(std::move(on_alone)) {}
  ~Flow();
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // --- rails. False: no peer may ask for that.
  // Cuts the stream that stood there before.
  bool join(RailNumber rail, Carrier& carrier) noexcept;
  bool fence(RailNumber rail, const Carrier& from) noexcept;
  void leave(const Carrier& carrier) noexcept;
  void cut_all() noexcept;
  bool alone() const noexcept { return alone_; }  // no rail is left
  // Since when it is, if it is, by the caller's clock: as far as he saw it, who asks from time to time.
  std::optional<std::chrono::nanoseconds> alone_since(std::chrono::nanoseconds now) noexcept;
  bool over() const noexcept { return over_ && alone_; }
  std::size_t result_bytes() const noexcept { return result_bytes_; }
  // The link on which the first message came; empty: none came.
  const std::string& message_link() const noexcept { return message_link_; }
  Sender& initiator() noexcept { return *initiator_; }
  void message_came(const Carrier& carrier);

  // --- outcomes of requests that happen once
  // Of a request that was done before. Null: it was not.
  const PastOutcome* outcome(std::uint64_t number) const noexcept;
  bool known(std::uint64_t number) const noexcept { return outcome(number) != nullptr; }
  // Whether a request of this number may still come, and there is room for its outcome.
  bool may_come(std::uint64_t number) const noexcept;
  void record(std::uint64_t number, Errc error, std::span<const std::byte> result = {});
  // For the outcome of one more, with so many bytes of result, so that the next record() does not throw.
  void make_room(std::size_t result);
  // The initiator knows the outcomes of all below `mark`.
  void settled(std::uint64_t mark) noexcept;

  ArrayCounts& arrays() noexcept { return arrays_; }

  // --- announced messages
  // Throws std::bad_alloc, and nothing has happened then.
  Standing announce(std::uint64_t number, Carrier& carrier, MessageOrigin& origin);
  Errc message_outcome(std::uint64_t number) const noexcept;
  bool was_announced(std::uint64_t number) const noexcept { return messages_.contains(number); }
  void fetching(std::uint64_t number, const Matched& matched) noexcept;  // it met a receive
  void done(std::uint64_t number, Errc error) noexcept;                  // received, or not wanted
  void message_settled(std::uint64_t number);                            // the initiator knows that

 private:
  struct Rail {
    std::uint32_t incarnation = 0;  // the greatest so far
    Carrier* carrier = nullptr;
  };
  struct Noted {
    const Carrier* carrier = nullptr;
    std::optional<Matched> matched{};
    std::optional<Errc> outcome{};
  };

  // MessageOrigin, of messages whose rails are gone.
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
  // Of numbers from mark_ on: runs that succeeded without a result, by their first number, with the one
  // behind the last; and the others.
  using Runs = std::map<std::uint64_t, std::uint64_t>;
  using Outcomes = std::map<std::uint64_t, PastOutcome>;
  Runs done_;
  Outcomes outcomes_;
  Runs::node_type spare_run_;  // for the next of either
  Outcomes::node_type spare_outcome_;
  std::size_t result_bytes_ = 0;
  ArrayCounts arrays_;
  std::uint64_t mark_ = 0;
  bool over_ = false;
  std::unordered_map<std::uint64_t, Noted> messages_;  // announced
};

}  // namespace fab::lnx

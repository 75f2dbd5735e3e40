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

#include "base/deadline.h"
#include "base/queues/linked_list.h"
#include "fabric/messages/receive_queue.h"
#include "fabric/session/array_counts.h"

// What the target of requests that come over several rails remembers, so that a request that is repeated on
// another rail is done once (docs/rails.md). All used under the lock of one context.
namespace fab {

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
  struct Outcome {
    Errc error = Errc::ok;
    std::vector<std::byte> result{};  // former values
  };
  // Of a request that was done before. Null: it was not.
  const Outcome* outcome(std::uint64_t number) const noexcept;
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
  enum class Announced {
    unknown,  // announced for the first time
    waiting,  // for a receive; the carrier is its origin from now on
    resumed,  // had met a receive: the carrier was told to go on
    done,     // over: message_outcome()
    refused,  // stands on another living rail, or they are too many
  };
  // Throws std::bad_alloc, and nothing has happened then.
  Announced announce(std::uint64_t number, Carrier& carrier, MessageOrigin& origin);
  Errc message_outcome(std::uint64_t number) const noexcept;
  bool was_announced(std::uint64_t number) const noexcept { return messages_.contains(number); }
  void fetching(std::uint64_t number, const Matched& matched) noexcept;  // it met a receive
  void done(std::uint64_t number, Errc error) noexcept;                  // received, or not wanted
  void message_settled(std::uint64_t number);                            // the initiator knows that

  // While their rails are gone.
  void fetch(const Message& message, const Matched& matched) noexcept override;
  void release(const Message& message) noexcept override;
  void consumed(std::uint64_t) noexcept override {}

 private:
  struct Rail {
    std::uint32_t incarnation = 0;  // the greatest so far
    Carrier* carrier = nullptr;
  };
  struct Message {
    const Carrier* carrier = nullptr;
    std::optional<Matched> matched{};
    std::optional<Errc> outcome{};
  };

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
  using Outcomes = std::map<std::uint64_t, Outcome>;
  Runs done_;
  Outcomes outcomes_;
  Runs::node_type spare_run_;  // for the next of either
  Outcomes::node_type spare_outcome_;
  std::size_t result_bytes_ = 0;
  ArrayCounts arrays_;
  std::uint64_t mark_ = 0;
  bool over_ = false;
  std::unordered_map<std::uint64_t, Message> messages_;  // announced
};

// The flows of a context.
class FlowTable {
 public:
  // `keep`: seconds for which a flow without rails is remembered. `on_alone`: expire() is to be called, now
  // and from time to time.
  FlowTable(ReceiveQueue& receives, double keep, std::function<void()> on_alone)
      : receives_(receives), keep_(in_nanoseconds(keep)), on_alone_(std::move(on_alone)) {}

  // Null: it is over, or of somebody who came under another key, or not known though `must_know` says that it
  // was, or they are too many.
  std::shared_ptr<Flow> open(FlowId id, bool must_know, const std::shared_ptr<Sender>& initiator);
  // The link on which this peer's messages come; empty: none came.
  std::string message_link(PeerId peer) const;
  // Ends flows whose peers have been gone for long; true while it has to be called again. `now`: as
  // Ticker::attended(), so that peers are not blamed for an absence of this process.
  bool expire(std::chrono::nanoseconds now) noexcept;

 private:
  static constexpr std::size_t kMost = 65536, kMostAlone = 4096;
  struct WithoutRails;
  struct Entry : Linked<WithoutRails> {
    Entry(std::uint64_t of, std::uint64_t number, std::shared_ptr<Flow> made)
        : peer(of), epoch(number), flow(std::move(made)) {}
    const std::uint64_t peer;
    std::uint64_t epoch;
    std::shared_ptr<Flow> flow;
  };
  using Alone = LinkedList<Entry, WithoutRails>;
  void stands_alone(std::uint64_t peer) noexcept;
  void forget(const Entry& entry) noexcept;

  ReceiveQueue& receives_;
  const std::chrono::nanoseconds keep_;
  const std::function<void()> on_alone_;
  std::unordered_map<std::uint64_t, Entry> flows_;  // by FlowId::peer
  Alone alone_;                                     // those without rails; maybe some that have one by now
};

}  // namespace fab

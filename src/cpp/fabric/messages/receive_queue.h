#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fabric/memory/piece_cursor.h"
#include "fabric/messages/match_table.h"
#include "fabric/messages/sender.h"
#include "fabric/types/types.h"

namespace fab {

class Operation;

// What a message says of itself before its bytes.
struct MessageHead {
  std::uint64_t tag = 0;
  std::uint64_t length = 0;  // bytes
  std::uint64_t data = 0;    // remote data
  std::uint32_t group = 0;   // peer group (fi_av(3))
  bool tagged = false;
  bool has_data = false;
};

// Which messages a receive takes (fi_tagged(3)).
struct MatchRule {
  std::uint64_t tag = 0, ignore = 0;  // `ignore`: bits of the tag that do not matter
  PeerId source = kNoPeer;            // a handle, or kNoPeer: anybody
  const AuthKey* key = nullptr;       // the endpoint's key that the sender has proved; null: any
  std::uint32_t group = 0;
  bool tagged = false;

  bool fits(const MessageHead& head, PeerId from, const AuthKey& under) const noexcept {
    return tagged == head.tagged && group == head.group && ((tag ^ head.tag) & ~ignore) == 0 &&
           (source == kNoPeer || source == from) && (!key || key == &under);
  }
  bool fits(const MessageHead& head, Sender& from) const noexcept {
    return fits(head, source != kNoPeer && from.known_by(source) ? source : kNoPeer, from.key());
  }
};

// Memory for one message or, with `least_room`, for messages one after another until less room than that is
// left (FI_MULTI_RECV). The operation has begun with one part.
struct Receive {
  Operation* operation = nullptr;
  union {
    std::byte* local = nullptr;
    const iovec* pieces;  // if piece_count > 0
  };
  std::uint16_t piece_count = 0;
  std::uint64_t length = 0;  // bytes
  std::uint64_t least_room = 0;
  MatchRule rule{};
};

// A message, and, once it was matched, where its bytes go and whom to tell.
struct Matched {
  MessageHead head{};
  Operation* operation = nullptr;
  PieceCursor landing{};
  std::uint64_t room = 0;    // bytes that go there; the message is truncated if it has more
  std::uint64_t offset = 0;  // where the landing place is in a receive for many messages
  bool one_of_many = false;
  Source source{};
};

// Stores as much of a message as there is room for; false: the memory is not there.
bool store_message(const Matched& matched, const std::byte* bytes) noexcept;

class MessageOrigin;

// A bit of Message::id: the id means nothing on another stream.
inline constexpr std::uint64_t kStreamOnly = std::uint64_t{1} << 63;

inline constexpr std::uint64_t kMessageOverhead = 128;  // what a buffered message costs besides its bytes

// Bytes that something holds, counted in a total while it is there.
class HeldBytes {
 public:
  HeldBytes() noexcept = default;
  HeldBytes(std::size_t& total, std::size_t bytes) noexcept : total_(&total), bytes_(bytes) {
    total += bytes;
  }
  HeldBytes(HeldBytes&& other) noexcept
      : total_(std::exchange(other.total_, nullptr)), bytes_(other.bytes_) {}
  HeldBytes& operator=(HeldBytes&& other) noexcept {
    std::swap(total_, other.total_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldBytes() {
    if (total_) *total_ -= bytes_;
  }

 private:
  std::size_t* total_ = nullptr;
  std::size_t bytes_ = 0;
};

// A message that no receive has wanted yet.
class Message {
 public:
  Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  ~Message() { comes_from(nullptr); }

  MessageOrigin* origin() const noexcept { return origin_; }  // null: gone
  void comes_from(MessageOrigin* origin) noexcept;

  MessageHead head{};
  std::shared_ptr<Sender> sender;
  std::unique_ptr<std::byte[]> bytes;  // unless announced
  bool announced = false;              // the sender still has the bytes
  std::uint64_t id = 0;                // announced: the number that the sender gave it
  std::vector<iovec> where;            // announced: the sender's addresses, if they can be read directly
  std::uint64_t claim = 0;
  std::uint64_t hash = 0;
  HeldBytes held;         // of this message, once it waits
  bool stranded = false;  // its stream has ended, and whoever sent it has not proven who he is
  ListLink<Message> same, age, left, brought;

 private:
  MessageOrigin* origin_ = nullptr;
};

// Where messages come from: the receiving side of a session. Before it ends it calls ReceiveQueue::leave().
class MessageOrigin {
 public:
  IntrusiveList<Message, &Message::brought> waiting;  // what came from here and waits; kept by the messages

  // An announced message was matched: moves the bytes and calls ReceiveQueue::finish(), maybe at once.
  // `message` is valid until this returns.
  virtual void fetch(const Message& message, const Matched& matched) noexcept = 0;
  // An announced message is not wanted.
  virtual void release(const Message& message) noexcept = 0;
  // So many bytes of buffered messages are free again, each counted with kMessageOverhead.
  virtual void consumed(std::uint64_t bytes) noexcept = 0;

 protected:
  ~MessageOrigin() = default;
};

inline void Message::comes_from(MessageOrigin* origin) noexcept {
  if (origin_) origin_->waiting.erase(*this);
  origin_ = origin;
  if (origin_) origin_->waiting.push_back(*this);
}

// The posted receives of a context, and the messages that wait for a receive, for all its links: the one
// place where messages are matched. Used under the context's lock.
class ReceiveQueue {
 public:
  // Without `directed`, receives take messages from anybody, whatever source or key they name
  // (FI_DIRECTED_RECV).
  explicit ReceiveQueue(bool directed = true) : directed_(directed) { spare_.reserve(kSpare); }
  ~ReceiveQueue() { drop_all(); }
  ReceiveQueue(const ReceiveQueue&) = delete;
  ReceiveQueue& operator=(const ReceiveQueue&) = delete;

  // --- receivers
  void post(const Receive& asked);
  // Takes back the posted receive of this operation, which settles with `canceled`. False: there is none, or
  // it was matched.
  bool cancel(const Operation& operation) noexcept;
  // Takes back the oldest posted receive whose operation is `wanted`. False: there is none.
  bool cancel_oldest(const std::function<bool(const Operation&)>& wanted);
  // The oldest waiting message that fits; null: none does. Valid until the queue is used again.
  const Message* peek(const MatchRule& rule);
  // Hides the oldest message that fits from everybody else and returns its number; 0: none fits (FI_CLAIM).
  std::uint64_t claim(const MatchRule& rule);
  // These receive a claimed message, or discard it, and thereby end the claim. False: no claimed message has
  // this number.
  bool receive_claimed(std::uint64_t claim, const Receive& receive);
  bool discard_claimed(std::uint64_t claim) noexcept;
  bool discard(const MatchRule& rule) noexcept;  // false: none fits
  const Message* claimed(std::uint64_t claim) const noexcept;
  // Ends every posted receive, without a completion, and drops the messages that wait.
  void drop_all() noexcept;

  // --- origins
  // Finds the oldest posted receive that fits `arrived.head`, and fills in the rest of `arrived`. The receive
  // is no longer posted then, unless it is one for many with room left. False: none fits.
  bool match(Matched& arrived, Sender& sender) noexcept;
  // Keeps a message that no receive wanted. Throws std::bad_alloc without effect, but not after make_room().
  void keep(std::unique_ptr<Message> message);
  void make_room() { unexpected_.make_room(); }
  // The bytes of all messages that wait, with what they need besides their content.
  std::size_t held() const noexcept { return held_; }
  // Drops messages that strangers (Sender::proven()) left when their streams ended, those first that were
  // left first, until no more than `most` bytes are held or none is left. Nobody can be told.
  void drop_stranded(std::size_t most) noexcept;
  // The bytes of a matched message are in place, or `error` tells why they are not.
  static void finish(const Matched& matched, Errc error) noexcept;
  // To be called when `origin` ends. Messages that it announced are dropped; with an `heir`, those whose id
  // is not kStreamOnly stay, as announced by the heir.
  void leave(MessageOrigin& origin, MessageOrigin* heir = nullptr) noexcept;
  // From now on `to` is the origin of the message that `from` announced under `id`.
  static void adopt(MessageOrigin& from, std::uint64_t id, MessageOrigin& to) noexcept;

  struct Sizes {
    std::size_t posted, unexpected;                    // now
    QueueLengths posted_lengths, unexpected_lengths;   // ever
    std::uint64_t matched_posted, matched_unexpected;  // messages, by who came first
  };
  Sizes sizes() const noexcept;

 private:
  struct Posted {
    Receive receive;
    std::uint64_t filled = 0;    // bytes that a receive for many has taken
    std::uint64_t sequence = 0;  // its number in the order of posting
    std::uint64_t hash = 0;
    ListLink<Posted> same, age;
  };
  using PostedTable = MatchTable<Posted, &Posted::same>;

  static void meet(const Posted& posted, Matched& arrived, Source source) noexcept;
  MatchRule in_force(MatchRule rule) const noexcept;  // without source and key, unless receives are directed
  Message* find(const MatchRule& asked) const noexcept;
  Posted* find_posted(const MessageHead& head, Sender& from) const noexcept;
  // Makes room for the message in a posted receive; retires it when it is used up.
  void use(Posted& posted, Matched& arrived, Source source) noexcept;
  void unlink(Posted& posted) noexcept;
  void retire(Posted& posted, Errc error) noexcept;
  void unlink(Message& message) noexcept;
  void strand(Message& message) noexcept;
  static void met(const Sender& sender) noexcept;
  static void deliver(Message& message, const Matched& matched) noexcept;
  static void forget(Message& message) noexcept;
  std::unique_ptr<Message> take_claimed(std::uint64_t claim) noexcept;

  static constexpr std::size_t kSpare = 64;
  std::size_t held_ = 0;
  const bool directed_;
  PostedTable exact_;                                  // receives without ignore bits
  IntrusiveList<Posted, &Posted::same> masked_;        // receives with ignore bits, oldest first
  IntrusiveList<Posted, &Posted::age> posted_by_age_;  // all receives; owns them
  MatchTable<Message, &Message::same> unexpected_;     // by kind, group and tag
  IntrusiveList<Message, &Message::age> by_age_;       // owns them
  IntrusiveList<Message, &Message::left> stranded_;    // those of by_age_ that are
  IntrusiveList<Message, &Message::age> claimed_;      // owns them
  std::vector<std::unique_ptr<Posted>> spare_;         // kept for the next receives
  std::uint64_t next_sequence_ = 1, next_claim_ = 1;
  std::size_t posted_ = 0;
  Sizes sizes_{};
};

}  // namespace fab

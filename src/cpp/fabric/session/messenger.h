#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/queues/linked_list.h"
#include "base/queues/ring_queue.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/session/initiator.h"
#include "fabric/session/stream_end.h"

namespace fab {

// A message of this side that the peer does not have yet.
struct Outgoing {
  Operation* operation = nullptr;  // null: the operation was settled before (inject)
  std::uint64_t length = 0;
  std::uint64_t number = 0;   // of the transfer: Path::oldest()
  std::uint64_t context = 0;  // of an operation that was settled before, for an error that comes after it
  std::uint32_t flags = 0;    // of that error's entry
};

// A message that was announced to the peer, and whose bytes are still here.
struct Announcement : Outgoing {
  PieceCursor source{};
  std::uint32_t answer = 0;             // serial of the answer to the peer's pull; 0: there was no pull
  std::unique_ptr<std::byte[]> copy{};  // the bytes, if they were injected
};

// The messages of a session, in both directions (docs/messages.md). Small messages are sent eagerly, into a
// window of the peer's memory, for which the peer gives credit. Longer messages are announced (rendezvous):
// they stay with their sender until the receiver reads them or asks for them with a pull.
class Messenger final : private MessageOrigin, private Initiator::Puller {
 public:
  Messenger(StreamEnd& end, Initiator& initiator);
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // --- sending
  // Posts a message. Returns false where there is no room. May throw std::bad_alloc, and has done nothing
  // then.
  bool post(const Transfer& transfer);
  // The stream took some of the output, or the peer has from now on what was handed to the stream.
  void sent() noexcept;
  // The number of the oldest message, as Path::oldest() tells it; Initiator::kNone if there is no message.
  std::uint64_t oldest() const noexcept;
  bool announces() const noexcept { return !announced_.empty(); }
  // Whether the peer has yet to do something for messages of this side.
  bool awaits_peer() const noexcept { return announces() || !sending_.empty(); }
  // Whether the peer may not have read all messages of this side.
  bool owes() const noexcept { return announces() || window_used_ != 0; }

  // --- frames of the peer. Errc::protocol: no peer may send that. They may throw std::bad_alloc; the stream
  // ends in both cases.
  Errc on_message(const FrameHeader& frame, const std::byte* payload);
  Errc on_announce(const FrameHeader& frame, const std::byte* payload);
  Errc on_pull(const FrameHeader& frame);
  Errc on_release(const FrameHeader& frame) noexcept;
  Errc on_credit(const FrameHeader& frame) noexcept;
  // A small message came through the eager ring of the link and not through the stream. Only its head is
  // known. Returns what Session::received() returns.
  Errc accept(Matched& arrived, const std::byte* payload) noexcept;

  void run_fetches() noexcept;  // fetches announced messages, as many bytes as the slice allows
  // Requests were answered, so there may be room for pulls that wait.
  void answered() noexcept {
    if (!waiting_pulls_.empty()) pull_waiting();
  }
  // The two functions of ExtensionHost that concern messages.
  void resume(std::uint64_t number, const Matched& matched) noexcept;
  bool at_rest() const noexcept;
  // Whether bytes of messages that the peer has announced are on their way here.
  bool fetches() const noexcept { return !pulls_.empty() || !waiting_pulls_.empty() || !fetches_.empty(); }
  void fail(Errc error) noexcept;

 private:
  // The most announced messages that are read together: with more of them, the first would wait longer.
  static constexpr std::size_t kMostFetches = 16;
  static constexpr std::uint64_t kMostFetchBytes = 512 * 1024;

  // A small message, until the stream has taken it.
  struct Sending : Outgoing {
    std::uint64_t end = 0;  // where the message ends in the request lane
  };
  struct Pull {
    std::uint64_t id = 0;
    Matched matched{};
  };
  // An announced message of the peer that was matched with a receive, and is read from the peer's memory.
  struct Fetch {
    Pull pull{};
    std::vector<iovec> where{};
    std::uint64_t done = 0;  // bytes that have been read
  };

  struct Announced : Announcement, Linked<Announcement> {};

  // Sends a small message through the eager ring. Returns false if it has to go through the stream.
  bool push_small(const Transfer& transfer) noexcept;
  void post_small(const Transfer& transfer, FrameHeader header);
  bool announce(const Transfer& transfer, FrameHeader header);
  void note_announced(std::uint64_t id, Announcement entry);
  std::byte* hold_announced(FrameHeader& header, Announcement entry);
  std::uint64_t next_number() const noexcept { return end_.services.counts.posted + 1; }
  Outgoing outgoing(const Transfer& transfer) const noexcept;
  void end_send(const Outgoing& message, Errc error) noexcept;
  static Operation& part_with_operation(Outgoing& message) noexcept;

  bool in_order(const FrameHeader& frame) const noexcept;
  // Uses up credit of the peer. Returns false if the peer has sent more than it had credit for.
  bool buffer(std::uint64_t cost) noexcept;
  void deliver(Matched& arrived, const std::byte* payload);
  void begin_fetch(const Matched& matched, std::uint64_t id, std::vector<iovec>& where) noexcept;
  void read_fetches() noexcept;
  // Whether this peer holds more than its share while all together hold too much.
  bool overfills() noexcept;
  bool slice_spent() const noexcept { return end_.services.slice && end_.services.slice->spent(); }
  bool stands(std::uint64_t id) const noexcept;  // the peer has not taken its announcement back
  void start_pull(const Pull& pull);
  void pull(const Pull& what) noexcept;
  void pull_waiting() noexcept;
  void end_fetch(const Pull& pull, Errc error) noexcept;
  void tell_release(std::uint64_t id, Errc error) noexcept;
  void tell_output() noexcept;

  // MessageOrigin: what the receive queue does with messages of this stream.
  void fetch(const Message& message, const Matched& matched) noexcept override;
  void release(const Message& message) noexcept override;
  void consumed(std::uint64_t bytes) noexcept override;
  // Initiator::Puller
  void pull_ended(Errc error) noexcept override;

  StreamEnd& end_;
  Initiator& initiator_;

  RingQueue<Sending> sending_;
  std::uint64_t window_used_ = 0;  // bytes of kMessageWindow that messages of this side fill
  std::unordered_map<std::uint64_t, Announced> announced_;  // messages of this side, by number
  LinkedList<Announced, Announcement> in_order_;            // the same messages in the order of posting
  decltype(announced_)::node_type spare_announced_;  // a node for the next message, kept from an old one
  std::uint64_t next_announced_ = 1;

  RingQueue<Fetch> fetches_;       // messages that are read together, or slice by slice if they are long
  std::uint64_t fetch_bytes_ = 0;  // bytes of all of fetches_
  std::unique_ptr<Message> spare_message_;  // for the next message that the peer announces
  RingQueue<Pull> pulls_;                   // pulls among the initiator's requests, in the same order
  RingQueue<Pull> waiting_pulls_;           // pulls for which the initiator has no room yet
  std::size_t announcements_ = 0;           // messages that the peer announced and this side has not released
  std::uint64_t buffered_ = 0;    // bytes of kMessageWindow that eager messages of the peer fill here
  std::uint64_t uncredited_ = 0;  // bytes that are free again, for which the peer has not got credit yet
};

}  // namespace fab

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

// A message that the peer was told of.
struct Announcement {
  Operation* operation = nullptr;  // null: its outcome is known (inject)
  PieceCursor source{};
  std::uint64_t length = 0;
  std::uint32_t answer = 0;             // serial of the answer to the pull, if there was one
  std::unique_ptr<std::byte[]> copy{};  // of an injected one
  std::uint64_t number = 0;             // as Path::oldest()
};

// The messages of a session, both ways: docs/messages.md. Small ones are sent eagerly, into a window of the
// peer's memory; longer ones are announced, and stay with their sender until the receiver reads them or asks
// for them.
class Messenger final : private MessageOrigin, private Initiator::Puller {
 public:
  Messenger(StreamEnd& end, Initiator& initiator);
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // --- sending
  bool post(const Transfer& transfer);  // false: full. Throws std::bad_alloc, and has done nothing then
  void sent() noexcept;                 // some of the output, or the peer has what is with the stream
  // As Path::oldest(), of the messages; Initiator::kNone if there is none.
  std::uint64_t oldest() const noexcept;
  bool announces() const noexcept { return !announced_.empty(); }
  // Whether the peer has yet to do something for messages of this side.
  bool awaits_peer() const noexcept { return announces() || !sending_.empty(); }
  // Whether it may not have read all of them.
  bool owes() const noexcept { return announces() || window_used_ != 0; }

  // --- frames. Errc::protocol: no peer may send that. Throws std::bad_alloc, and the stream ends.
  Errc on_message(const FrameHeader& frame, const std::byte* payload);
  Errc on_announce(const FrameHeader& frame, const std::byte* payload);
  Errc on_pull(const FrameHeader& frame);
  Errc on_release(const FrameHeader& frame) noexcept;
  Errc on_credit(const FrameHeader& frame) noexcept;
  // A message that came beside the stream; nothing but its head is known. Tells as Session::received() does.
  Errc accept(Matched& arrived, const std::byte* payload) noexcept;

  void run_fetches() noexcept;  // as many as the slice allows
  // Requests were answered: there may be room for pulls that wait.
  void answered() noexcept {
    if (!waiting_pulls_.empty()) pull_waiting();
  }
  // As ExtensionHost.
  void resume(std::uint64_t number, const Matched& matched) noexcept;
  bool at_rest() const noexcept;
  void fail(Errc error) noexcept;

 private:
  // Announced messages that are read at once: more would make the first ones wait.
  static constexpr std::size_t kMostFetches = 16;
  static constexpr std::uint64_t kMostFetchBytes = 512 * 1024;

  // A small message that the peer does not have yet.
  struct Sending {
    Operation* operation = nullptr;
    std::uint64_t length = 0;
    std::uint64_t end = 0;     // where it ends in the request lane
    std::uint64_t number = 0;  // as Path::oldest()
  };
  struct Pull {
    std::uint64_t id = 0;
    Matched matched{};
  };
  // An announced message that met its receive.
  struct Fetch {
    Pull pull{};
    std::vector<iovec> where{};
    std::uint64_t done = 0;  // bytes that were read
  };

  struct Announced : Announcement, Linked<Announcement> {};

  bool post_small(const Transfer& transfer) noexcept;  // false: has to go through the stream
  void post_small(const Transfer& transfer, FrameHeader header);
  bool announce(const Transfer& transfer, FrameHeader header);
  void note_announced(std::uint64_t id, Announcement entry);
  std::byte* hold_announced(FrameHeader& header, Announcement entry);
  std::uint64_t next_number() const noexcept { return end_.services.counts.posted + 1; }
  void end_send(Operation* operation, std::uint64_t length, Errc error) noexcept;

  bool in_order(const FrameHeader& frame) const noexcept;
  bool buffer(std::uint64_t cost) noexcept;  // false: more than the peer may send
  void deliver(Matched& arrived, const std::byte* payload);
  void begin_fetch(const Matched& matched, std::uint64_t id, std::vector<iovec>& where) noexcept;
  void read_fetches() noexcept;
  bool slice_spent() const noexcept { return end_.services.slice && end_.services.slice->spent(); }
  bool stands(std::uint64_t id) const noexcept;  // an announcement of the peer
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
  std::uint64_t window_used_ = 0;                           // of kMessageWindow, by messages of this side
  std::unordered_map<std::uint64_t, Announced> announced_;  // by number
  LinkedList<Announced, Announcement> in_order_;            // of posting
  decltype(announced_)::node_type spare_announced_;         // of one that has ended
  std::uint64_t next_announced_ = 1;

  RingQueue<Fetch> fetches_;                // to be read in one go, or slice by slice
  std::uint64_t fetch_bytes_ = 0;           // of them
  std::unique_ptr<Message> spare_message_;  // for the next one that is announced
  RingQueue<Pull> pulls_;                   // among the initiator's requests, in the same order
  RingQueue<Pull> waiting_pulls_;           // for a place there
  std::size_t announcements_ = 0;           // of the peer, not released
  std::uint64_t buffered_ = 0;              // of kMessageWindow, by messages of the peer
  std::uint64_t uncredited_ = 0;            // bytes of it that are free again
};

}  // namespace fab

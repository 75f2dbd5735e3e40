#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/queues/ring_queue.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/messages/receive_queue.h"
#include "fabric/provider.h"
#include "fabric/segment/segment.h"
#include "fabric/session/flow.h"
#include "fabric/session/frame.h"
#include "fabric/session/output.h"

namespace fab {

// Reads memory of the process at the other end, where the transport can: announced messages.
class MemoryReader {
 public:
  struct Read {
    std::span<const iovec> from{};
    PieceCursor to{};
    std::uint64_t begin = 0, length = 0;  // bytes, on either side
    Errc outcome = Errc::not_supported;   // that: not possible here, nothing was read
  };
  virtual ~MemoryReader() = default;
  virtual void read(std::span<Read> reads) noexcept = 0;
};

// Where both ends of a stream share memory: which of them was first, when the receiver of an announced
// message has its bytes while the sender gives up. The second one goes by it, so that both are told the same,
// and the sender's memory is not taken for the message once the sender may use it again.
class AnnouncementLedger {
 public:
  virtual ~AnnouncementLedger() = default;
  // The sender's side. A number for another announcement, at most kMaxOutstanding at a time.
  virtual std::uint64_t open() noexcept = 0;
  // The receiver released it.
  virtual void end(std::uint64_t number) noexcept = 0;
  // Takes it back, before anybody is told that it is lost. False: the receiver was first.
  virtual bool revoke(std::uint64_t number) noexcept = 0;
  // The receiver's side. Whether the sender has not taken it back so far.
  virtual bool stands(std::uint64_t number) const noexcept = 0;
  // The bytes are here, or nobody wants them. False: the sender was first, and they may be anything.
  virtual bool take(std::uint64_t number) noexcept = 0;
};

// When the peer has what was handed to a stream, whatever becomes of this process: Delivery::transmit.
enum class Handover : std::uint8_t {
  at_once,       // it lies in the peer's memory
  when_held,     // it will, once the peer holds that memory: Session::held()
  when_answered  // it may lie in buffers that go with this process
};

// A faster way for small messages beside a stream. Both ends have one, or neither.
class SmallMessages {
 public:
  virtual ~SmallMessages() = default;
  // Sends a message, complete when this returns; whoever posts it sees to it that the peer is told. False: it
  // has to go through the stream.
  virtual bool push(const Transfer& transfer) noexcept = 0;
  // The number of one that goes through the stream.
  virtual std::uint32_t number() noexcept = 0;
  // Message `number` comes through the stream: hands over all before it to Session::accept(). False: they are
  // not there, which no peer may do.
  virtual bool come_to(std::uint32_t number) noexcept = 0;
};

// The target's side of a device that reaches its memory without it. Called under the context's lock.
class DeviceAccess {
 public:
  virtual ~DeviceAccess() = default;
  // Fills kDescriptionBytes for the peer's device. False: only messages reach the region.
  virtual bool describe(std::uint32_t region, std::byte* out) noexcept = 0;
  // The CPU is about to update the region atomically: on return no device does, nor will later.
  virtual void claim_atomics(std::uint32_t region) noexcept = 0;
};

// Put, get, atomics and messages as frames over a reliable byte stream (a socket, a ring): the initiator's
// and the target's side of one connection between two contexts. Knows no transport: the owner moves output()
// and input() and calls sent() and received(). Payloads go from and to registered memory without a bounce.
// Used under its context's lock.
//
// Initiator: post() queues frames and remembers the request; answers settle requests strictly in order.
// Target: each request is judged by RegionView::judge() before a byte of it is stored; a refused one is
// drained and answered by `fail`, and the stream goes on. Successes are gathered into one ack per turn
// (end_turn()).
// Messages: docs/messages.md. Requests that happen once, over whatever stream: docs/rails.md.
class Session final : private MessageOrigin, private Flow::Carrier {
 public:
  struct Services {
    Segment& segment;                // regions that the peer may reach
    CompletionQueue& completions;    // for remote data that arrives
    ReceiveQueue& receives;          // for messages
    std::shared_ptr<Sender> sender;  // the other end
    std::uint16_t cell;              // of the context, which regions may be bound to
    PathCounts& counts;  // kept for the path; `settled` counts answers, whenever an operation settled
    const std::function<void()>& wake_domain;
    Slice* slice = nullptr;  // spent by what is sent, received and read; the owner stops where it is spent
    std::function<void()> on_more{};     // the slice was spent: go_on() in the next turn
    AccessObserver* observer = nullptr;  // of regions that are kObserved
    std::function<void()> on_output{};   // there is something to send, outside of post() and received()
    MemoryReader* reader = nullptr;      // both ends have one, or neither
    SmallMessages* beside = nullptr;
    AnnouncementLedger* ledger = nullptr;  // both ends have one, or neither
    Handover handover = Handover::at_once;
    std::size_t largest_message = kMaxMessage;  // bytes; longer ones are announced
    DeviceAccess* device = nullptr;
    FlowTable* flows = nullptr;      // where streams may be rails
    std::function<void()> on_cut{};  // likewise: end this stream, its place is taken
  };
  explicit Session(Services services);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // --- initiator
  // As Path::post; short when the limits are reached. A transfer for which there is no memory waits as for
  // room while something is outstanding, and fails with no_memory otherwise.
  std::size_t post(std::span<const Transfer> batch) noexcept;
  bool post_notify(std::uint64_t data, std::uint64_t length) noexcept;  // false: full, or no memory
  std::size_t outstanding() const noexcept;                             // requests without an answer

  // --- byte stream
  // Whether memory was lacking for what the peer is owed, so that the owner has to end the stream with
  // no_memory. Nothing is sent from then on. received() and accept() tell it, too; in between, on_output() is
  // called.
  bool broken() const noexcept { return broken_; }
  // What to send next, at most `max` pieces, which stay valid until sent() or fail(); 0 if there is nothing.
  std::size_t output(iovec* out, std::size_t max) noexcept;
  void sent(std::size_t bytes) noexcept;
  bool has_output() const noexcept;
  std::size_t queued() const noexcept { return output_.queued(); }  // bytes of requests that wait to be sent
  // Where to put received bytes, in this order, at most `max` >= 2 pieces, never empty. Valid until
  // received(), forget() or fail().
  std::size_t input(iovec* out, std::size_t max = 2) noexcept;
  // ok, or why the connection must go: protocol (the peer sent nonsense) or no_memory.
  Errc received(std::size_t bytes) noexcept;
  // In a turn after Services::on_more.
  void go_on() noexcept { run_fetches(); }
  // After a round of received(): queues the gathered ack, if any.
  void end_turn() noexcept;
  // Whether all that is gathered is of messages, and not of many.
  bool acks_can_wait() const noexcept {
    constexpr std::uint64_t kMany = 32;
    return acks_ != 0 && acks_ < kMany && !acks_of_requests_;
  }

  // A message that came beside the stream; nothing but its head is known.
  // Tells as received() does.
  Errc accept(Matched& arrived, const std::byte* payload) noexcept;

  // --- control
  Sender& sender() noexcept { return *services_.sender; }
  // Whether the peer has something to do for this side: nothing is heard of one that cannot.
  bool awaits_peer() const noexcept { return outstanding() != 0 || !announced_.empty() || !sending_.empty(); }
  bool announces() const noexcept { return !announced_.empty(); }  // messages, to the peer
  bool rail() const noexcept { return joined_ || flow_; }          // one of several ways to the peer
  // Whether the peer may not have read all messages of this side.
  bool owes_messages() const noexcept { return announces() || window_used_ != 0; }
  void forget(std::uint32_t region) noexcept;
  // The connection is gone: everything outstanding settles with `error`.
  void fail(Errc error) noexcept;
  // The transport met memory that is not there (EFAULT) in the first piece of output() or of input() with
  // `max` 2: the request in question fails with `bounds`, the stream goes on. False: no such piece was shown.
  bool output_fault() noexcept;
  bool input_fault() noexcept;
  void ping() noexcept;  // asks for a sign of life
  // From now on the peer has what is handed to the stream, and what was (Handover).
  void held() noexcept;
  // The peer has told that the requests are lost which have no answer yet: none of them is served any more.
  // Messages that it counts as sent are still taken.
  void peer_gave_up() noexcept { peer_gave_up_ = true; }

 private:
  // Gets that went as one request, because one followed the other.
  struct Row {
    Operation* operation;
    std::uint64_t remote;
  };
  struct Rows {
    std::uint64_t key;
    std::vector<Row> rows;
    std::vector<iovec> places;  // where they land
  };
  struct Request {
    Operation* operation = nullptr;  // null once it was settled ahead of the answer
    std::uint64_t context = 0;       // of the operation, for an error that comes after that
    std::uint32_t flags = 0;
    OpCode op = OpCode::write;
    Delivery delivery = Delivery::delivery;
    bool local = false;        // never sent: `error` is its outcome
    Errc error = Errc::ok;     // found on this side
    std::uint64_t length = 0;  // bytes
    std::uint64_t got = 0;     // of the answer
    std::uint64_t end = 0;     // where it ends in the request lane
    PieceCursor landing{};     // of the answer
    std::unique_ptr<Rows> rows{};
  };
  struct Admitted {  // a request that was judged
    Errc error = Errc::ok;
    std::uint32_t region = 0;
    std::uint64_t state = 0;   // of the region's entry
    std::uint64_t offset = 0;  // within the region
  };
  struct IncomingWrite {
    bool open = false;
    FrameHeader first{};
    Admitted target{};
    std::uint64_t done = 0;
    std::optional<Errc> before{};  // it was done on another stream, and this came of it
  };
  enum class Sink : std::uint8_t { region, landing, drain };
  using Lane = SessionOutput::Lane;

  // A small message that the peer does not have yet.
  struct Sending {
    Operation* operation = nullptr;
    std::uint64_t length = 0;
    std::uint64_t end = 0;  // where it ends in the request lane
  };
  // A message that the peer was told of.
  struct Announced {
    Operation* operation = nullptr;  // null: its outcome is known (inject)
    PieceCursor source{};
    std::uint64_t length = 0;
    std::uint32_t answer = 0;             // serial of the answer to the pull, if there was one
    std::unique_ptr<std::byte[]> copy{};  // of an injected one
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

  // initiator. What posts throws std::bad_alloc, and has done nothing then.
  std::size_t post_front(std::span<const Transfer> batch);
  bool refuse(const Transfer& transfer) noexcept;
  void post_request(const Transfer& transfer, Request& request);
  void post_write(const Transfer& transfer, Request& request);
  void post_atomic(const Transfer& transfer, Request& request);
  void post_rows(std::span<const Transfer> run);
  void settle_rows(const Request& request, Errc error) noexcept;
  void read_again();
  void settle(const Request& request, Errc error) noexcept;
  void settle_early(Request& request) noexcept;
  void finish_oldest(Errc error);
  bool awaits_data() const noexcept;
  Errc on_ack();
  Errc on_fail();
  Errc on_data();
  // target. What serves a frame throws std::bad_alloc; the stream ends then, and has not changed anything
  // twice or halfway.
  Admitted admit(OpCode op) const noexcept;
  Errc on_write();
  void end_probe();
  void end_write();
  void on_read();
  Errc on_rows(const std::byte* payload);
  void on_describe();
  void on_atomic(const std::byte* payload);
  Errc apply(const Admitted& target, const std::byte* payload, std::byte* result) noexcept;
  void tell_stored(const Admitted& target, OpCode op) const noexcept;
  Errc make_durable(const Admitted& target, std::uint64_t length) const noexcept;
  void count_write(const RegionEntry& entry) noexcept;
  void deliver(std::uint64_t length, std::uint64_t data) noexcept;
  // messages
  bool post_message(const Transfer& transfer);          // false: full
  bool post_beside(const Transfer& transfer) noexcept;  // false: has to go through the stream
  bool post_small(const Transfer& transfer, FrameHeader header);
  bool announce(const Transfer& transfer, FrameHeader header);
  std::byte* hold_announced(FrameHeader& header, Announced entry);
  void end_send(Operation* operation, std::uint64_t length, Errc error) noexcept;
  void begin_fetch(const Matched& matched, std::uint64_t id, std::vector<iovec> where) noexcept;
  void run_fetches() noexcept;
  void read_fetches() noexcept;
  bool slice_spent() const noexcept { return services_.slice && services_.slice->spent(); }
  bool stands(std::uint64_t id) const noexcept;  // an announcement of the peer
  void start_pull(const Pull& pull);
  void pull(const Pull& what) noexcept;
  void finish_pull(Errc error) noexcept;
  void end_fetch(const Pull& pull, Errc error) noexcept;
  const Flow::Outcome* done_before() const noexcept;
  void prepare_to_remember(std::size_t result);
  void remember(Errc outcome, std::span<const std::byte> result = {}) noexcept;
  Errc on_join();
  Errc on_fence();
  Errc on_settled();
  void cut() noexcept override;
  const std::string& link() const noexcept override { return services_.sender->link(); }
  void resume(std::uint64_t number, const Matched& matched) noexcept override;
  bool in_order() const noexcept;
  bool buffer(std::uint64_t cost) noexcept;  // false: more than the peer may send
  void deliver_message(Matched& arrived, const std::byte* payload);
  Errc on_message(const std::byte* payload);
  Errc on_announce(const std::byte* payload);
  Errc on_pull();
  Errc on_release() noexcept;
  Errc on_credit() noexcept;
  void tell_release(std::uint64_t id, Errc error) noexcept;
  void fetch(const Message& message, const Matched& matched) noexcept override;
  void release(const Message& message) noexcept override;
  void consumed(std::uint64_t bytes) noexcept override;
  void messages_sent() noexcept;
  void fail_messages(Errc error) noexcept;
  void tell(const FrameHeader& header) noexcept;
  void answer(Errc outcome) noexcept;
  std::byte* answer_room();
  void answer_data(const std::byte* content);
  void answer_copy(std::uint32_t region, std::span<const SessionOutput::Range> ranges, std::byte* content);
  void flush_acks() noexcept;
  // stream
  Errc take_in(std::size_t bytes);
  Errc consume();
  Errc on_frame(const std::byte* payload);
  Errc end_payload();
  void store(std::size_t bytes) noexcept;
  PieceCursor& sink_cursor() noexcept {
    return sink_ == Sink::landing ? requests_.front().landing : region_cursor_;
  }

  Delivery level_of(const Transfer& transfer) const noexcept;

  const Services services_;
  const Visitor visitor_{services_.segment.port(services_.cell), services_.sender->key().number};
  SessionOutput output_;

  RingQueue<Request> requests_;     // without an answer, oldest first
  std::size_t handed_over_ = 0;     // how many of them were sent completely: only those can be answered
  std::uint64_t result_bytes_ = 0;  // former values that they ask for
  std::size_t asked_rows_ = 0;      // of requests_, one by one
  RingQueue<Transfer> again_;       // rows of a request that failed, one by one, when there is room

  RingQueue<Sending> sending_;
  std::uint64_t window_used_ = 0;                           // of kMessageWindow, by messages of this side
  std::unordered_map<std::uint64_t, Announced> announced_;  // by number
  std::uint64_t next_announced_ = 1;
  RingQueue<Fetch> fetches_;       // to be read in one go, or slice by slice
  std::uint64_t fetch_bytes_ = 0;  // of them
  RingQueue<Pull> pulls_;          // among requests_, in the same order
  RingQueue<Pull> waiting_pulls_;  // for a place there
  std::size_t announcements_ = 0;  // of the peer, not released
  std::uint64_t buffered_ = 0;     // of kMessageWindow, by messages of the peer
  std::uint64_t uncredited_ = 0;   // bytes of it that are free again

  bool joined_ = false;         // as a rail of a flow of this side
  std::shared_ptr<Flow> flow_;  // of the peer, whose rail this is
  ArrayCounts arrays_;          // of the peer, where there are no rails
  bool failing_ = false;
  Handover handover_ = services_.handover;
  bool peer_gave_up_ = false;

  IncomingWrite write_;
  std::uint64_t acks_ = 0;         // successes not yet told
  bool acks_of_requests_ = false;  // not only of messages

  std::unique_ptr<std::byte[]> staging_;
  std::size_t taken_ = 0, filled_ = 0;        // of staging_
  std::size_t needed_ = sizeof(FrameHeader);  // bytes from taken_ on without which nothing moves
  FrameHeader frame_{};
  std::uint32_t payload_left_ = 0;  // of frame_, to go into the sink
  Sink sink_ = Sink::drain;
  std::size_t direct_ = 0;  // bytes of the sink shown by input()
  PieceCursor region_cursor_{};
  iovec region_pieces_[RegionView::kMaxRegionPieces];
  bool long_frames_ =
      false;  // the peer is sending long payloads: read header by header, so that they need no copy
  bool broken_ = false;
  std::uint64_t frames_ = 0;  // that came
};

}  // namespace fab

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/queues/ring_queue.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/session/frames/reader.h"
#include "fabric/session/stream_end.h"

namespace fab {

// The initiator's side of a session: it sends requests and receives their answers. Answers come in the order
// of the requests, so each one settles the oldest request. The functions that post may throw std::bad_alloc,
// and have done nothing then.
class Initiator {
 public:
  // Asks the sender for the bytes of announced messages (rendezvous). Such a pull is a request among the
  // others.
  class Puller {
   public:
    virtual void pull_ended(Errc error) noexcept = 0;  // the oldest pull was answered, or has failed

   protected:
    ~Puller() = default;
  };

  explicit Initiator(StreamEnd& end) : end_(end) {}
  Initiator(const Initiator&) = delete;
  Initiator& operator=(const Initiator&) = delete;
  // Is called once, before any other function.
  void set_puller(Puller& puller) noexcept { puller_ = &puller; }

  // --- requests out
  bool room_for(const Transfer& transfer) const noexcept {
    if (end_.output.broken() || requests_.size() + asked_rows_ >= kMaxOutstanding ||
        end_.output.copied(SessionOutput::Lane::requests) >= kMostCopied)
      return false;
    const bool fetches = transfer.op == OpCode::fetch_atomic || transfer.op == OpCode::compare_atomic;
    return !fetches || result_bytes_ + kMaxAtomicBytes <= kMaxResultBytes;
  }
  // Posts the first transfer of the batch, which must not be a message, or several gets at its front as one
  // request. Returns the number of transfers that were posted.
  std::size_t post(std::span<const Transfer> batch);
  // Fails a transfer for which there is no memory. Returns false if requests are outstanding: the caller
  // posts the transfer again when they are answered and have given memory back.
  bool refuse(const Transfer& transfer) noexcept;
  bool post_notify(const Transfer& put) noexcept;
  // The delivery level that the operation has to wait for on this stream.
  Delivery level_of(const Transfer& transfer) const noexcept;

  // --- requests whose frames the messenger queues
  bool full() const noexcept { return requests_.size() >= kMaxOutstanding; }
  // Gets memory for one more request, so that the next await_*() does not throw.
  void reserve() { requests_.reserve(requests_.size() + 1); }
  void await_ack(Operation* operation, std::uint64_t length);
  void await_message(const Matched& matched);

  // --- answers. Errc::protocol: no peer may answer so, and the stream has to end.
  Errc on_ack(const FrameHeader& frame);
  Errc on_fail(const FrameHeader& frame);
  // A data frame begins: its payload goes to the memory of the oldest request.
  Errc on_data(const FrameHeader& frame, Reader& reader) noexcept;
  // The payload of that frame has come.
  void end_data(const FrameHeader& frame, const Reader& reader);

  // --- the stream
  void sent() noexcept;  // the stream took some of the output
  void held() noexcept;  // from now on the peer has what was handed to the stream (Session::held())
  // The payload of the oldest request that is not sent completely lies in memory that is not there.
  void output_fault() noexcept;
  bool idle() const noexcept { return requests_.empty(); }
  // The number of the oldest request, as Path::oldest() tells it; kNone if there is no request.
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t oldest() const noexcept;
  std::size_t outstanding() const noexcept { return requests_.size() + again_.size(); }
  void fail(Errc error) noexcept;

 private:
  static constexpr std::size_t kMostCopied = 1 << 20;  // copied bytes that may wait to be sent

  // One of several gets that followed each other and went as one request.
  struct Row {
    Operation* operation;
    std::uint64_t remote;
  };
  struct Rows {
    std::uint64_t key;
    std::vector<Row> rows;
    std::vector<iovec> places;  // where the bytes of each row go
  };
  struct Request {
    Operation* operation = nullptr;  // null once the operation was settled ahead of the answer
    std::uint64_t context = 0;       // of the operation, for an error that comes after it was settled
    std::uint64_t number = 0;        // of the transfer (Path::oldest()), or of the first row
    std::uint32_t flags = 0;
    OpCode op = OpCode::write;
    Delivery delivery = Delivery::delivery;
    bool local = false;        // the request is never sent, and `error` is its outcome
    bool again = false;        // a row that is asked for a second time, alone, behind younger requests
    bool ignored = false;      // the bytes of the answer are thrown away
    Errc error = Errc::ok;     // an error that was found on this side
    std::uint64_t length = 0;  // bytes of the transfer
    std::uint64_t got = 0;     // bytes of the answer that have come
    std::uint64_t end = 0;     // where the request ends in the request lane
    PieceCursor landing{};     // where the answer goes
    std::unique_ptr<Rows> rows{};
  };

  void post_request(const Transfer& transfer, Request& request);
  void post_control(const Transfer& transfer, Request& request);
  void post_write(const Transfer& transfer, Request& request);
  void post_atomic(const Transfer& transfer, Request& request);
  void take_back(Request& request, std::size_t bytes) noexcept;
  void post_rows(std::span<const Transfer> run);
  void read_again();
  std::uint64_t count_posted(OpCode op) noexcept;
  void settle(const Request& request, Errc error) noexcept;
  void settle_rows(const Request& request, Errc error) noexcept;
  void settle_early(Request& request) const noexcept;
  void finish_oldest(Errc error);
  bool awaits_data() const noexcept;

  StreamEnd& end_;
  Puller* puller_ = nullptr;
  RingQueue<Request> requests_;     // requests without an answer, oldest first
  std::size_t handed_over_ = 0;     // requests_ that were sent completely: only these can be answered
  std::uint64_t result_bytes_ = 0;  // former values that requests_ ask for
  std::size_t asked_rows_ = 0;      // rows in requests_
  struct Again {
    Transfer transfer;
    std::uint64_t number;
  };
  RingQueue<Again> again_;       // rows of a failed request that have to be asked for one by one
  std::size_t asked_again_ = 0;  // such rows in requests_
};

}  // namespace fab

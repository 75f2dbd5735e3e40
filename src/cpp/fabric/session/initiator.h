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

// The initiator's side of a session: requests out, answers in. Answers settle requests strictly in the order
// in which these were sent. What posts throws std::bad_alloc, and has done nothing then.
class Initiator {
 public:
  // Asks for the bytes of announced messages, which is a request among the others.
  class Puller {
   public:
    virtual void pull_ended(Errc error) noexcept = 0;  // the oldest one

   protected:
    ~Puller() = default;
  };

  explicit Initiator(StreamEnd& end) : end_(end) {}
  Initiator(const Initiator&) = delete;
  Initiator& operator=(const Initiator&) = delete;
  void set_puller(Puller& puller) noexcept { puller_ = &puller; }  // once, before all else

  // --- requests out
  bool room_for(const Transfer& transfer) const noexcept {
    if (end_.output.broken() || requests_.size() + asked_rows_ >= kMaxOutstanding ||
        end_.output.copied(SessionOutput::Lane::requests) >= kMostCopied)
      return false;
    const bool fetches = transfer.op == OpCode::fetch_atomic || transfer.op == OpCode::compare_atomic;
    return !fetches || result_bytes_ + kMaxAtomicBytes <= kMaxResultBytes;
  }
  // Takes what the batch begins with, which is no message; returns how many transfers that is.
  std::size_t post(std::span<const Transfer> batch);
  // A transfer for which there is no memory fails; false: it may be tried again, as others have yet to be
  // answered.
  bool refuse(const Transfer& transfer) noexcept;
  bool post_notify(std::uint64_t data, std::uint64_t length) noexcept;
  // What the operation waits for, in terms of the stream.
  Delivery level_of(const Transfer& transfer) const noexcept;

  // --- requests whose frames the messenger queues
  bool full() const noexcept { return requests_.size() >= kMaxOutstanding; }
  void reserve() { requests_.reserve(requests_.size() + 1); }  // the next await_*() does not throw
  void await_ack(Operation* operation, std::uint64_t length);
  void await_message(const Matched& matched);

  // --- answers in. Errc::protocol: no peer may answer so.
  Errc on_ack(const FrameHeader& frame);
  Errc on_fail(const FrameHeader& frame);
  Errc on_data(const FrameHeader& frame, Reader& reader) noexcept;  // and when its payload has come:
  void end_data(const FrameHeader& frame, const Reader& reader);

  // --- the stream
  void sent() noexcept;  // some of the output
  void held() noexcept;  // from now on the peer has what is with the stream
  // The payload of the oldest request that is not with the stream lies in memory that is not there.
  void output_fault() noexcept;
  bool idle() const noexcept { return requests_.empty(); }
  // As Path::oldest(), of the requests; kNone if there is none.
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  std::uint64_t oldest() const noexcept;
  std::size_t outstanding() const noexcept { return requests_.size() + again_.size(); }
  void fail(Errc error) noexcept;

 private:
  static constexpr std::size_t kMostCopied = 1 << 20;  // bytes of requests that wait

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
    std::uint64_t number = 0;        // as Path::oldest(); of rows that of the first
    std::uint32_t flags = 0;
    OpCode op = OpCode::write;
    Delivery delivery = Delivery::delivery;
    bool local = false;        // never sent: `error` is its outcome
    bool again = false;        // a row that is asked for by itself, behind younger requests
    bool ignored = false;      // the bytes of the answer go nowhere
    Errc error = Errc::ok;     // found on this side
    std::uint64_t length = 0;  // bytes
    std::uint64_t got = 0;     // of the answer
    std::uint64_t end = 0;     // where it ends in the request lane
    PieceCursor landing{};     // of the answer
    std::unique_ptr<Rows> rows{};
  };

  void post_request(const Transfer& transfer, Request& request);
  void post_control(const Transfer& transfer, Request& request);
  void post_write(const Transfer& transfer, Request& request);
  void post_atomic(const Transfer& transfer, Request& request);
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
  RingQueue<Request> requests_;     // without an answer, oldest first
  std::size_t handed_over_ = 0;     // how many of them were sent completely: only those can be answered
  std::uint64_t result_bytes_ = 0;  // former values that they ask for
  std::size_t asked_rows_ = 0;      // of requests_, one by one
  struct Again {
    Transfer transfer;
    std::uint64_t number;
  };
  RingQueue<Again> again_;       // rows of a request that failed, one by one, when there is room
  std::size_t asked_again_ = 0;  // of requests_, those
};

}  // namespace fab

#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/queues/byte_queue.h"
#include "base/queues/ring_queue.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/segment/region_table.h"
#include "fabric/session/frames/frame.h"

namespace fab {

// What a Session has to send, in two lanes: requests and answers. The lanes share the stream frame by frame,
// so that an answer never waits for a long put. Small frames are copied, and long payloads are sent from
// where they lie.
class SessionOutput {
 public:
  enum class Lane : std::uint8_t { answers, requests };

  explicit SessionOutput(RegionView regions) : regions_(regions) { staged_.reserve(kUsuallyStaged); }

  // The functions that queue something may throw std::bad_alloc, and have done nothing then.
  //
  // Queues whole frames, which the caller writes to the place returned before it calls anything else; or the
  // header of a request, before user_payload() or zeros().
  std::byte* append(Lane lane, std::size_t bytes);
  // Takes back what the last call of append() has appended.
  void unappend(Lane lane, std::size_t bytes) noexcept;
  void append_header(Lane lane, const FrameHeader& header) {
    encode(header, append(lane, sizeof(FrameHeader)));
  }
  // Queues the payload of the put whose first header was just appended. A put that is longer than one frame
  // gets further headers here.
  void user_payload(const FrameHeader& first, const PieceCursor& source) noexcept;
  // Queues the payload of a request whose payload means nothing.
  void zeros(std::uint64_t length) noexcept;
  // Queues a whole answer from a region's memory: data frames, then a frame without payload that marks the
  // end.
  void region_payload(std::uint32_t region, std::uint64_t offset, std::uint64_t length);
  // Queues an answer from several ranges of a region, one after the other, of at most kMaxPayload bytes
  // together.
  struct Range {
    std::uint64_t offset, length;
  };
  void region_payload(std::uint32_t region, std::vector<Range> ranges, std::uint64_t length);

  // Queues a whole answer from memory of the user, which has to stay valid while holds() is true for the
  // number returned.
  std::uint32_t message_payload(const PieceCursor& source, std::uint64_t length);
  bool holds(std::uint32_t serial) const noexcept;

  // There was no memory for something that has to be told to the peer: nothing is sent any more, and the
  // stream has to end.
  void break_off() noexcept { broken_ = true; }
  bool broken() const noexcept { return broken_; }

  // See Session::output() and Session::sent(). output() may throw std::bad_alloc; what is queued can then
  // only be cleared.
  std::size_t output(iovec* out, std::size_t max);
  void sent(std::size_t bytes) noexcept;
  bool empty() const noexcept {
    return staged_.empty() && lanes_[0].items.empty() && lanes_[1].items.empty();
  }

  // The bytes of the request lane since the stream began: those that were queued, and those that were handed
  // to the stream.
  std::uint64_t requests_queued() const noexcept { return requests_queued_; }
  std::uint64_t requests_sent() const noexcept { return requests_sent_; }
  std::size_t queued() const noexcept { return requests_queued_ - requests_sent_; }
  // The copied bytes that wait in a lane, and the number of items that wait in it.
  std::size_t copied(Lane lane) const noexcept { return of(lane).bytes.size(); }
  std::size_t waiting(Lane lane) const noexcept { return of(lane).items.size(); }
  std::size_t waiting_ranges() const noexcept { return waiting_ranges_; }

  // Sends nothing more from region `index`. A frame that has begun is finished from a copy, and its answer
  // ends with `fail`. False: there is no memory for the copy, and the stream must end.
  bool forget(std::uint32_t index) noexcept;
  // The memory that is next to be sent is not there: zeros are sent instead, and an answer ends with `fail`.
  // Returns whose memory it was.
  enum class Fault { none, request, answer };
  Fault fault() noexcept;
  void clear() noexcept;

 private:
  enum class Source : std::uint8_t { copied, header, user, region, message, owned, zero, nothing };
  // What is queued and not yet cut into frames.
  struct Item {
    Source source = Source::copied;
    std::uint32_t serial = 0;
    std::uint32_t region = 0;
    std::uint64_t left = 0;        // bytes; of payloads, without the headers that are still to be made
    std::uint64_t frame_left = 0;  // user: bytes of the frame whose header was made
    std::uint64_t offset = 0;      // region: where the next frame begins
    std::vector<Range> ranges{};   // region: the ranges of the only frame, instead of `offset`
    PieceCursor cursor{};
    FrameHeader next{};  // header of the next frame
  };
  // What was cut into frames and is shown by output().
  struct Piece {
    const std::byte* data = nullptr;
    std::size_t length = 0;
    Source source = Source::copied;
    Lane lane = Lane::answers;
    std::uint32_t serial = 0;
    std::uint32_t region = 0;
    std::unique_ptr<std::byte[]> owned{};
  };
  struct LaneQueue {
    ByteQueue bytes;
    RingQueue<Item> items;
  };
  static constexpr std::size_t kHeaders = 64;
  static constexpr std::size_t kStagedBytes = 1 << 20;
  static constexpr std::size_t kUsuallyStaged = 64;  // pieces

  LaneQueue& of(Lane lane) noexcept { return lanes_[static_cast<std::size_t>(lane)]; }
  const LaneQueue& of(Lane lane) const noexcept { return lanes_[static_cast<std::size_t>(lane)]; }
  bool next_lane(Lane& lane) const noexcept;
  bool stage(Lane lane);  // stages the next frame or a part of it; false: no header is free
  void stage_copied(Lane lane, Item& item);
  bool stage_header(Lane lane, const Item& item);
  void stage_user(Item& item);
  void stage_region(Item& item);
  void stage_message(Item& item);
  void stage_piece(Piece piece);
  // Ends answer `serial` with a `fail` after its present frame.
  void end_answer(std::uint32_t serial, Errc error) noexcept;

  RegionView regions_;
  LaneQueue lanes_[2];
  RingQueue<Piece> staged_;
  std::size_t staged_bytes_ = 0;
  std::array<std::byte[sizeof(FrameHeader)], kHeaders> headers_;  // a ring, in the order of staged_
  std::size_t header_at_ = 0, headers_used_ = 0;
  std::uint32_t next_serial_ = 1;
  std::uint64_t requests_queued_ = 0, requests_sent_ = 0;
  std::size_t waiting_ranges_ = 0;  // ranges in all queued items
  bool answer_was_last_ = false;
  bool broken_ = false;
};

}  // namespace fab

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>

#include "fabric/session/frames/reader.h"
#include "fabric/session/stream_end.h"

namespace fab {

// The target's side of a session: requests in, answers out. Each request is judged by RegionView::judge()
// before a byte of it is stored; a refused one is answered by `fail`, and the stream goes on. What serves a
// frame throws std::bad_alloc; the stream ends then, and has not changed anything twice or halfway.
// Errc::protocol: no peer may send that.
class Target {
 public:
  explicit Target(StreamEnd& end) : end_(end) {}
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  bool in_put() const noexcept { return put_.open; }        // nothing but more of it may come
  Errc on_write(const FrameHeader& frame, Reader& reader);  // and when its payload has come:
  void end_write(const FrameHeader& frame, const Reader& reader);
  void end_probe(const FrameHeader& frame);
  void on_read(const FrameHeader& frame);
  Errc on_rows(const FrameHeader& asked, const std::byte* payload);
  void on_atomic(const FrameHeader& frame, const std::byte* payload);
  void on_describe(const FrameHeader& frame);
  void on_notify(const FrameHeader& frame) noexcept { deliver(frame.total, frame.data); }
  // The region closes: no more is stored there.
  void forget(std::uint32_t region, Reader& reader) noexcept;
  void clear() noexcept { put_ = {}; }

 private:
  struct Admitted {  // a request that was judged
    Errc error = Errc::ok;
    std::uint32_t region = 0;
    std::uint64_t state = 0;   // of the region's entry
    std::uint64_t offset = 0;  // within the region
  };
  struct IncomingPut {
    bool open = false;
    FrameHeader first{};
    Admitted target{};
    std::uint64_t done = 0;
    std::optional<Errc> before{};  // it was done on another stream, and this came of it
  };

  Admitted admit(const FrameHeader& frame, OpCode op) const noexcept;
  void begin_put(const FrameHeader& frame) noexcept;
  void end_put(const FrameHeader& frame);
  Errc apply(const FrameHeader& frame, const Admitted& target, const std::byte* payload,
             std::byte* result) noexcept;
  void tell_stored(const FrameHeader& frame, const Admitted& target, OpCode op) const noexcept;
  Errc make_durable(const Admitted& target, std::uint64_t length) const noexcept;
  void count_write(const RegionEntry& entry) noexcept;
  void deliver(std::uint64_t length, std::uint64_t data) noexcept;
  void answer(const FrameHeader& frame, Errc outcome) noexcept { end_.answers.give(outcome, frame.type); }
  void answer_copy(const FrameHeader& frame, std::uint32_t region,
                   std::span<const SessionOutput::Range> ranges, std::byte* content);
  RegionView regions() const noexcept { return end_.services.segment.regions(); }

  StreamEnd& end_;
  IncomingPut put_;
  iovec pieces_[RegionView::kMaxRegionPieces];  // where the payload of its frame goes
};

}  // namespace fab

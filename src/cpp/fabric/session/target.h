#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>

#include "fabric/session/frames/reader.h"
#include "fabric/session/stream_end.h"

namespace fab {

// The target's side of a session: it serves the requests of the peer and answers them. RegionView::judge()
// judges each request before a byte of it is stored. A request that is refused is answered by `fail`, and the
// stream goes on. A function that serves a frame may throw std::bad_alloc: the stream ends then, and nothing
// was changed twice or halfway. It may return Errc::protocol: no peer may send that frame.
class Target {
 public:
  explicit Target(StreamEnd& end) : end_(end) {}
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // Whether a put has begun whose last frame has not come: no other request may come before it.
  bool in_put() const noexcept { return put_.open; }
  // A frame of a put begins: its payload goes to the region.
  Errc on_write(const FrameHeader& frame, Reader& reader);
  // The payload of that frame has come.
  void end_write(const FrameHeader& frame, const Reader& reader);
  void end_probe(const FrameHeader& frame);
  void on_read(const FrameHeader& frame);
  Errc on_rows(const FrameHeader& asked, const std::byte* payload);
  void on_atomic(const FrameHeader& frame, const std::byte* payload);
  void on_describe(const FrameHeader& frame);
  void on_notify(const FrameHeader& frame) noexcept;
  // The region closes: nothing more is stored there.
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
    FrameHeader first{};  // only of a put of several frames
    Admitted target{};
    std::uint64_t done = 0;
    std::optional<Errc> before{};  // the put was done before, over another stream, with this outcome
  };

  Admitted admit(const FrameHeader& frame, OpCode op) const noexcept;
  void begin_put(const FrameHeader& frame) noexcept;
  void end_put(const FrameHeader& frame);
  Errc apply(const FrameHeader& frame, const Admitted& target, const std::byte* payload,
             std::byte* result) noexcept;
  void tell_stored(const FrameHeader& frame, const Admitted& target, const RegionEntry& entry,
                   OpCode op) const noexcept;
  Errc make_durable(const Admitted& target, std::uint64_t length) const noexcept;
  void count(const RegionEntry& entry, Effects effects) noexcept;
  void deliver(std::uint64_t length, std::uint64_t data) noexcept;
  void answer(const FrameHeader& frame, Errc outcome) noexcept { end_.answers.give(outcome, frame.type); }
  void answer_copy(const FrameHeader& frame, std::uint32_t region,
                   std::span<const SessionOutput::Range> ranges, std::byte* content);
  RegionView regions() const noexcept { return end_.services.segment.regions(); }

  StreamEnd& end_;
  IncomingPut put_;
  iovec pieces_[RegionView::kMaxRegionPieces];  // where the payload of the present frame of put_ goes
};

}  // namespace fab

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fabric/memory/piece_cursor.h"
#include "fabric/session/frames/frame.h"

namespace fab {

// Takes the bytes of a stream apart into frames, and knows nothing of what these mean. Its owner puts bytes
// where input() says, tells of them by arrived(), and asks for next() until there is nothing. Long payloads
// go where the owner wants them as they arrive, without a copy; it allocates nothing after its constructor.
class Reader {
 public:
  enum class Event : std::uint8_t {
    nothing,   // until more arrives
    frame,     // frame() begins
    payload,   // and has ended: all of the payload of frame() is where it belongs
    nonsense,  // the header of a frame that no peer may send
  };

  Reader();  // throws std::bad_alloc

  // As in Session.
  std::size_t input(iovec* out, std::size_t max) noexcept;
  void arrived(std::size_t bytes) noexcept;
  Event next() noexcept;
  const FrameHeader& frame() const noexcept { return frame_; }
  // Of an atomic, a message, an announcement and a list of ranges: all of it, until next() is called again.
  const std::byte* content() const noexcept { return content_; }
  std::uint64_t frames() const noexcept { return frames_; }  // that came

  // Where the payload of frame() goes, which a put, an answer and a probe have. What nobody says this of is
  // thrown away.
  void store_in_region(const PieceCursor& where) noexcept { put_into(where, Sink::region); }
  // Memory that nobody looks at before all of it has come.
  void land(const PieceCursor& where) noexcept { put_into(where, Sink::landing); }
  void drain() noexcept;  // the rest of it goes nowhere
  // After Event::payload: where the next payload of the same request goes.
  const PieceCursor& end() const noexcept { return sink_; }
  // After Event::payload: some of that memory is not there, and the payload was thrown away from there on.
  bool faulted() const noexcept { return faulted_; }
  // The same found by whoever fills the first piece of input(). False: that is this object's own.
  bool fault() noexcept;
  bool in_region() const noexcept { return in_payload_ && left_ != 0 && kind_ == Sink::region; }

  void clear() noexcept;  // what has come of a stream that is gone

 private:
  enum class Sink : std::uint8_t { region, landing, drain };

  void put_into(const PieceCursor& where, Sink kind) noexcept {
    sink_ = where;
    kind_ = kind;
  }
  Event begin_frame() noexcept;
  void store(std::size_t bytes) noexcept;

  std::unique_ptr<std::byte[]> staging_;
  std::size_t taken_ = 0, filled_ = 0;        // of staging_
  std::size_t needed_ = sizeof(FrameHeader);  // bytes from taken_ on without which nothing moves
  FrameHeader frame_{};
  const std::byte* content_ = nullptr;
  std::uint64_t frames_ = 0;
  // The payload of frame_.
  bool in_payload_ = false;
  std::uint32_t left_ = 0;  // bytes
  Sink kind_ = Sink::drain;
  PieceCursor sink_{};
  bool faulted_ = false;
  std::size_t direct_ = 0;    // bytes of the sink shown by input()
  bool put_open_ = false;     // a put of which not all frames have come
  bool long_frames_ = false;  // long payloads are coming: read header by header, so that they need no copy
};

}  // namespace fab

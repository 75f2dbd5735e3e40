#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/lifetime.h"
#include "fabric/memory/piece_cursor.h"
#include "fabric/session/frames/frame.h"

namespace fab {

// Makes frames of the bytes of a stream, and knows nothing of what the frames mean. Its owner puts bytes
// where input() says, calls arrived(), and then calls next() until that returns Event::nothing. Long payloads
// arrive in the memory that the owner names, without a copy. A reader allocates nothing after its
// constructor.
class Reader {
 public:
  enum class Event : std::uint8_t {
    nothing,   // there is nothing to do until more bytes arrive
    frame,     // frame() begins
    payload,   // the payload of frame() is complete, and is where it belongs
    nonsense,  // the peer sent a header that no peer may send
  };

  Reader();  // throws std::bad_alloc

  // See Session::input().
  std::size_t input(iovec* out, std::size_t max) noexcept;
  void arrived(std::size_t bytes) noexcept;
  Event next() noexcept {
    if (!in_payload_) return begin_frame();
    if (left_) {
      store(std::min<std::size_t>(filled_ - taken_, left_));
      if (left_) return Event::nothing;
    }
    in_payload_ = false;
    return Event::payload;
  }
  const FrameHeader& frame() const noexcept FAB_LIFETIME_BOUND { return frame_; }
  // The whole payload of an atomic, a message, an announcement or a list of ranges, valid until next() is
  // called again.
  const std::byte* content() const noexcept { return content_; }
  // Whether a frame, or a put of several frames, has begun of which the rest has yet to come.
  bool unfinished() const noexcept { return in_payload_ || taken_ != filled_ || put_open_; }
  // The number of frames that have come.
  std::uint64_t frames() const noexcept { return frames_; }

  // The next three say where the payload of frame() goes, if it is a put, an answer or a probe. Without such
  // a call the payload is thrown away.
  //
  // The payload goes to memory of a region, which others may look at while it comes.
  void store_in_region(const PieceCursor& where) noexcept { put_into(where, Sink::region); }
  // The payload goes to memory that nobody looks at before all of it has come.
  void land(const PieceCursor& where) noexcept { put_into(where, Sink::landing); }
  // The rest of the payload is thrown away.
  void drain() noexcept;
  // After Event::payload: where the next payload of the same request goes.
  const PieceCursor& end() const noexcept FAB_LIFETIME_BOUND { return sink_; }
  // After Event::payload: some of that memory is not there, and the payload was thrown away from there on.
  bool faulted() const noexcept { return faulted_; }
  // Whoever fills the first piece of input() found that its memory is not there. Returns false if the piece
  // is this object's own memory.
  bool fault() noexcept;
  bool in_region() const noexcept { return in_payload_ && left_ != 0 && kind_ == Sink::region; }

  void clear() noexcept;  // throws away what has come, because the stream is gone

 private:
  enum class Sink : std::uint8_t { region, landing, drain };

  void put_into(const PieceCursor& where, Sink kind) noexcept {
    sink_ = where;
    kind_ = kind;
  }
  Event begin_frame() noexcept;
  void store(std::size_t bytes) noexcept;

  std::unique_ptr<std::byte[]> staging_;
  std::size_t taken_ = 0, filled_ = 0;        // how far staging_ was read, and how far it is filled
  std::size_t needed_ = sizeof(FrameHeader);  // bytes from taken_ on that the next event needs
  FrameHeader frame_{};
  const std::byte* content_ = nullptr;
  std::uint64_t frames_ = 0;
  bool in_payload_ = false;  // the payload of frame_ is not complete
  std::uint32_t left_ = 0;   // bytes of it that are still to come
  Sink kind_ = Sink::drain;
  PieceCursor sink_{};
  bool faulted_ = false;
  std::size_t direct_ = 0;    // bytes of sink_ that input() has shown
  bool put_open_ = false;     // there is a put of which not all frames have come
  bool long_frames_ = false;  // long payloads come: headers are read one by one, so that no payload is copied
};

}  // namespace fab

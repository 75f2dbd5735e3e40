#pragma once

#include "fabric/completion/operation.h"
#include "fabric/session/frames/frame.h"

namespace fab {

// An operation that a link posts to a session for reasons of its own. The link may use the session as one of
// several ways to the peer, or it may have something to tell the peer's link or to ask of it. No user posts
// such an operation.
//
// With OpCode::control, `frame` is the whole request. Its payload is `frame.length` zero bytes, and the
// answer must bring Transfer::length bytes, which go to Transfer::local, or nowhere if that is null. With
// transfer_flag::kMarked, on a put, a get, an update or a message, `frame` holds the fields that the user
// does not choose: `id` and `flags`, and for a stripe `data`.
class LinkOperation : public Operation {
 public:
  FrameHeader frame{};
  bool announced = false;  // of a message: it was announced to the peer, over this session or another one
};

inline const LinkOperation& link_operation(const Transfer& transfer) noexcept {
  return static_cast<const LinkOperation&>(*transfer.operation);
}

// Whether the transfer is a part of a larger put or get: frame.data bytes lie before the part, and frame.id
// is the length of the whole.
inline bool is_stripe(const Transfer& transfer) noexcept {
  return (transfer.flags & transfer_flag::kMarked) &&
         (link_operation(transfer).frame.flags & frame_flag::kStripe);
}

}  // namespace fab

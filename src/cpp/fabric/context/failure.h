#pragma once

#include <cstdint>
#include <string>

#include "fabric/types/types.h"

namespace fab {

class Context;

// A failed operation: what was asked of which peer, and how it failed.
struct Failure {
  OpCode op;
  Errc error;
  std::uint64_t nbytes, remote, key;
  PeerId peer;
};

const char* verb(OpCode op) noexcept;  // "write"
// How a message names a peer by its handle: "peer 3", or "any peer" for kNoPeer.
std::string peer_text(PeerId peer);
// All of that in words. They name the path to the peer, if `context` is not null and has one, and may wait
// for its lock for that.
std::string text_of(const Failure& failure, Context* context);

}  // namespace fab

#include "fabric/context/failure.h"

#include <exception>

#include "base/bytes/hex.h"
#include "fabric/context/context.h"

namespace fab {
namespace {

// Tells of the path that failed. Opening the next one for a text would call a peer that may just have refused
// this side.
std::string way_to(Context& context, PeerId peer) {
  try {
    const auto report = context.last_report(peer);
    return report ? " over " + report->link + " (" + report->how + ")" : std::string();
  } catch (const std::exception&) {
    return {};  // the endpoint is closed by now
  }
}

// A link tells one code for a region's key and for an authorization key that a peer does not take.
std::string reason(const Failure& failure) {
  std::string text = describe(failure.error);
  if (failure.error == Errc::unreachable) text += ": it has ended, or does not take calls from here";
  if (failure.error != Errc::key_rejected) return text;
  if (failure.op == OpCode::send || failure.op == OpCode::receive)
    return "the peer did not take the authorization key of this side; give both the same auth_key";
  return text +
         ", or did not take this side's auth_key; a region ends with the last reference to it, so keep "
         "that, and not its `remote` alone";
}

}  // namespace

const char* verb(OpCode op) noexcept {
  switch (op) {
    case OpCode::write:
      return "write";
    case OpCode::read:
      return "read";
    case OpCode::atomic:
      return "atomic";
    case OpCode::fetch_atomic:
      return "fetch_atomic";
    case OpCode::compare_atomic:
      return "compare_atomic";
    case OpCode::send:
      return "send";
    case OpCode::receive:
      return "receive";
    default:  // a user starts no others
      return "operation";
  }
}

std::string peer_text(PeerId peer) { return peer == kNoPeer ? "any peer" : "peer " + std::to_string(peer); }

std::string text_of(const Failure& failure, Context* context) {
  const bool sends = failure.op == OpCode::send, receives = failure.op == OpCode::receive,
             puts = failure.op == OpCode::write || failure.op == OpCode::atomic;
  std::string text = std::string(verb(failure.op)) + " of " + std::to_string(failure.nbytes) + " bytes";
  if (sends || receives)
    text += ", tag " + std::to_string(failure.key) + (sends ? ", to " : ", from ") + peer_text(failure.peer);
  else
    text += " at " + std::to_string(failure.remote) + " of key " + hex(failure.key) +
            (puts ? " to " : " from ") + peer_text(failure.peer);
  if (context && !receives && failure.error != Errc::peer_lost && failure.error != Errc::canceled)
    text += way_to(*context, failure.peer);
  return text + " failed: " + reason(failure);
}

}  // namespace fab

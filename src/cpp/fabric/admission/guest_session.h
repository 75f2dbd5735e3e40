#pragma once

#include "fabric/admission/guests.h"
#include "fabric/admission/pace.h"
#include "fabric/session/session.h"

namespace fab {

// Whether something of the peer is under way that it has to go on with: a frame that has begun, an answer
// that it takes, a message that is fetched from it.
inline bool peer_works(const Session& session) noexcept {
  return session.incoming().unfinished() || session.has_output() || session.messages().fetches();
}

// What is under way on a stream that a peer began. This side's own requests count as moving, because only
// Liveness judges who owes an answer. What a peer has announced and nobody receives costs it nothing, so it
// is no work.
inline Guest::Work work_of(Session& session, const Pace& pace) noexcept {
  const Messenger& messages = session.messages();
  if (peer_works(session)) return pace.stalled() ? Guest::Work::stalled : Guest::Work::moving;
  if (session.awaits_peer()) return Guest::Work::moving;
  return messages.at_rest() && !session.one_of_several() ? Guest::Work::none : Guest::Work::stalled;
}

}  // namespace fab

#pragma once

#include <utility>

#include "fabric/session/frames/answers.h"
#include "fabric/session/frames/output.h"
#include "fabric/session/services.h"

namespace fab {

// This end of a session's stream, which the initiator, the target and the messenger of the session share.
struct StreamEnd {
  explicit StreamEnd(SessionServices given)
      : services(std::move(given)),
        requester{services.segment.rights_of(services.context_slot), services.sender->key().number,
                  services.table ? &services.table->limits() : nullptr, &services.sender->names()},
        output(services.segment.regions()) {}

  const SessionServices services;
  const Requester requester;  // the peer, as RegionView::judge() must know it
  SessionOutput output;
  Answers answers{output};
  ExtensionPlace extension;
  Handover handover = services.handover;
  bool peer_gave_up = false;  // the peer has told its user that its requests without an answer are lost
  bool failing = false;       // the stream is being ended, and nothing is queued any more
};

}  // namespace fab

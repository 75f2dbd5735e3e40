#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/deadline.h"
#include "fabric/completion/event_queue.h"
#include "fabric/memory/slice.h"
#include "fabric/provider.h"
#include "providers/lnx/flows/flow.h"

namespace fab::lnx {

class Rails;

// What rails to one peer are made of.
struct RailsParameters {
  // The peer as the endpoint that was asked for a path was told of it.
  struct Destination {
    PeerId peer;
    Name name;
    std::uint16_t target;    // context of the peer
    std::size_t auth_index;  // of the authorization key
  };

  CompletionQueue& completions;              // for errors of injected transfers
  Slice& slice;                              // the slice of the present turn
  double peer_deadline;                      // seconds, as in DomainOptions
  std::function<Clock::time_point()> clock;  // by which rails are tried again
  // The clock by which silence is judged: as Ticker::attended(), so that no rail is blamed for an absence of
  // this process. It goes on while rails are watched.
  std::function<Clock::time_point()> attended;
  std::function<void(Rails&)> on_work;       // pump() has something to do, or tick()
  std::function<void()> on_watch;            // tick() wants to be called every kLook as long as watched()
  std::function<void(const Loss&)> on_lost;  // the peer counts as lost, or before that one link to it
  std::string preferred;                     // the link for ordered requests, if it is up; empty: the first
  const AddressVector& peers;
  FlowId flow;  // greater than the flow of former rails to this peer
  Destination to;
};

// A link that shall become a rail.
struct RailLink {
  Endpoint* endpoint;
  std::string tag;    // "tcp.0"
  double weight = 0;  // the share that the user gave it; 0: as its bandwidth says
};

}  // namespace fab::lnx

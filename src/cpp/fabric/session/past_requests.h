#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fabric/messages/receive_queue.h"
#include "fabric/session/array_counts.h"
#include "fabric/types/error.h"

namespace fab {

class ExtensionHost;

// The outcome of a request that was done before, and must not be done again.
struct PastOutcome {
  Errc error = Errc::ok;
  std::vector<std::byte> result{};  // former values, which a fetching atomic returns
};

// What the target knows of a message that the peer announces.
enum class Standing : std::uint8_t {
  unknown,  // the message is announced for the first time
  waiting,  // the message waits for a receive; from now on this session is its origin
  resumed,  // the message was matched with a receive before, and ExtensionHost::resume() was called
  done,     // the message was received, or nobody wanted it: PastRequests::message_outcome()
  refused,  // no peer may announce this message: the stream has to end
};

// What a target remembers of an initiator whose requests come over several sessions, and may come again over
// another one. When a session ends, this is the origin of its messages that are still unmatched. Used under
// the context's lock.
class PastRequests : public MessageOrigin {
 public:
  // --- requests that are done once, however often they come: happens_once() says which
  // Whether the peer knows the outcome of this number, so that it may not send it any more.
  virtual bool is_stale(std::uint64_t number) const noexcept = 0;
  // Whether a request of this number may come, and there is room for its outcome.
  virtual bool may_come(std::uint64_t number) const noexcept = 0;
  // The outcome of a request that was done before; null: the request was not done before.
  virtual const PastOutcome* outcome(std::uint64_t number) const noexcept = 0;
  // Is called before the request is done, so that record() needs no memory. Throws std::bad_alloc.
  virtual void make_room(std::size_t result_bytes) = 0;
  virtual void record(std::uint64_t number, Errc outcome, std::span<const std::byte> result) noexcept = 0;
  // The arrays of this initiator, whose pieces may come over several sessions.
  virtual ArrayCounts& arrays() noexcept = 0;

  // --- messages with a number
  // A small message of this number came over this session. True: it was taken or announced before, over
  // whichever session. Throws std::bad_alloc.
  virtual bool came(std::uint64_t number, const ExtensionHost& over) = 0;
  // The peer announces the message over this session. Throws std::bad_alloc, and nothing has happened then.
  virtual Standing announce(std::uint64_t number, ExtensionHost& over, MessageOrigin& origin) = 0;
  virtual Errc message_outcome(std::uint64_t number) const noexcept = 0;
  // The message was matched with a receive, and is being fetched.
  virtual void fetching(std::uint64_t number, const Matched& matched) noexcept = 0;
  // The message was received, or its receiver does not want it.
  virtual void done(std::uint64_t number, Errc error) noexcept = 0;

 protected:
  ~PastRequests() = default;
};

}  // namespace fab

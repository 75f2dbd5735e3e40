#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fabric/messages/receive_queue.h"
#include "fabric/session/array_counts.h"
#include "fabric/session/frames/frame.h"
#include "fabric/types/error.h"

// A link may add requests and rules to the protocol of sessions. Rails do so: they use several sessions to
// one peer as one, and a request that is repeated over another session must not be done twice. Everything
// here is used under the context's lock.
namespace fab {

// What an extension may ask of its session.
class ExtensionHost {
 public:
  // Answers the request that Extension::on_request() is serving.
  virtual void answer(Errc outcome, FrameType request) noexcept = 0;
  virtual const std::shared_ptr<Sender>& peer() const noexcept = 0;
  // Ends the stream: the session fails before this returns, and Extension::leave() is called.
  virtual void cut() noexcept = 0;
  // Fetches an announced message that was matched with its receive while it came over another session.
  virtual void resume(std::uint64_t number, const Matched& matched) noexcept = 0;
  // Whether no announced message of the peer waits for its receive or is being fetched.
  virtual bool at_rest() const noexcept = 0;

 protected:
  ~ExtensionHost() = default;
};

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
  done,     // the message was received, or nobody wanted it: Extension::message_outcome()
  refused,  // no peer may announce this message: the stream has to end
};

// What a link adds to one session.
class Extension {
 public:
  virtual ~Extension() = default;

  // --- requests that the session itself does not know
  // Serves a request of the peer and answers it. Errc::protocol: no peer may send this request. May throw
  // std::bad_alloc.
  virtual Errc on_request(const FrameHeader& frame) = 0;
  // This side posts such a request.
  virtual void on_post(const FrameHeader& frame) noexcept = 0;
  // Whether the peer can be reached over other sessions too, so that the peer may live on when this one ends.
  virtual bool one_of_several() const noexcept = 0;

  // --- requests that are done once, however often they come: happens_once() says which
  // Whether the peer may send a request of this number.
  virtual bool may_come(std::uint64_t number) const noexcept = 0;
  // The outcome of a request that was done before; null: the request was not done before.
  virtual const PastOutcome* outcome(std::uint64_t number) const noexcept = 0;
  // Is called before the request is done, so that record() needs no memory. Throws std::bad_alloc.
  virtual void make_room(std::size_t result_bytes) = 0;
  virtual void record(std::uint64_t number, Errc outcome, std::span<const std::byte> result) noexcept = 0;
  // The arrays of this initiator, whose pieces may come over several sessions. Null: all pieces come over
  // this session.
  virtual ArrayCounts* arrays() noexcept = 0;

  // --- messages with a number
  // A small message of this number came. True: it was taken or announced before, over whichever session.
  virtual bool came(std::uint64_t number) = 0;
  // The peer announces the message over this session. Throws std::bad_alloc.
  virtual Standing announce(std::uint64_t number, MessageOrigin& origin) = 0;
  virtual Errc message_outcome(std::uint64_t number) const noexcept = 0;
  // Whether the peer may announce this message again over another session.
  virtual bool shares(std::uint64_t number) const noexcept = 0;
  // The message was matched with a receive, and is being fetched.
  virtual void fetching(std::uint64_t number, const Matched& matched) noexcept = 0;
  // The message was received, or its receiver does not want it.
  virtual void done(std::uint64_t number, Errc error) noexcept = 0;
  // Takes over the messages of this session that are still unmatched when it ends; null: nobody does.
  virtual MessageOrigin* heir() noexcept = 0;

  // --- the end
  // The stream is gone.
  virtual void leave() noexcept = 0;
};

// Makes the extension of each session of a context.
class ExtensionMaker {
 public:
  virtual std::unique_ptr<Extension> make(ExtensionHost& host) = 0;

 protected:
  ~ExtensionMaker() = default;
};

// The extension of one session. Most sessions have none. It is asked only about requests that concern it, so
// that all other requests pay for one comparison.
class ExtensionPlace final {
 public:
  void move_in(std::unique_ptr<Extension> extension) noexcept { extension_ = std::move(extension); }

  // A peer that wants to join a session without an extension is told that this is not supported. All other
  // requests of an extension come after a join, so that no peer may send them here.
  Errc on_request(const FrameHeader& frame, ExtensionHost& host) {
    if (extension_) return extension_->on_request(frame);
    if (frame.type != FrameType::join) return Errc::protocol;
    host.answer(Errc::not_supported, frame.type);
    return Errc::ok;
  }
  void on_post(const FrameHeader& frame) noexcept {
    if (extension_) extension_->on_post(frame);
  }
  bool one_of_several() const noexcept { return extension_ && extension_->one_of_several(); }

  bool may_come(const FrameHeader& frame) const noexcept {
    return !happens_once(frame) || (extension_ && extension_->may_come(frame.id));
  }
  const PastOutcome* outcome(const FrameHeader& frame) const noexcept {
    return happens_once(frame) ? extension_->outcome(frame.id) : nullptr;
  }
  void make_room(const FrameHeader& frame, std::size_t result_bytes) {
    if (happens_once(frame)) extension_->make_room(result_bytes);
  }
  void record(const FrameHeader& frame, Errc outcome, std::span<const std::byte> result = {}) noexcept {
    if (happens_once(frame)) extension_->record(frame.id, outcome, result);
  }
  ArrayCounts& arrays() noexcept {
    ArrayCounts* const shared = extension_ ? extension_->arrays() : nullptr;
    return shared ? *shared : arrays_;
  }

  bool came(const FrameHeader& frame) { return frame.id != 0 && extension_ && extension_->came(frame.id); }
  Standing announce(const FrameHeader& frame, MessageOrigin& origin) {
    if (frame.id & kStreamOnly) return Standing::unknown;
    return extension_ ? extension_->announce(frame.id, origin) : Standing::refused;
  }
  Errc message_outcome(std::uint64_t number) const noexcept { return extension_->message_outcome(number); }
  bool shares(std::uint64_t number) const noexcept {
    return !(number & kStreamOnly) && extension_ && extension_->shares(number);
  }
  void fetching(std::uint64_t number, const Matched& matched) noexcept {
    if (shares(number)) extension_->fetching(number, matched);
  }
  void done(std::uint64_t number, Errc error) noexcept {
    if (shares(number)) extension_->done(number, error);
  }
  MessageOrigin* heir() noexcept { return extension_ ? extension_->heir() : nullptr; }

  void leave() noexcept {
    if (extension_) extension_->leave();
  }

 private:
  std::unique_ptr<Extension> extension_;
  ArrayCounts arrays_;  // of a peer that uses this session alone
};

}  // namespace fab

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

// A link may add to the protocol of sessions. Rails do: several sessions to one peer are used as one, so that
// a request which was repeated over another of them must not be done twice. All of it is used under the
// context's lock.
namespace fab {

// What an extension may ask of its session.
class ExtensionHost {
 public:
  // Answers the request that Extension::on_request() is about.
  virtual void answer(Errc outcome, FrameType request) noexcept = 0;
  virtual const std::shared_ptr<Sender>& peer() const noexcept = 0;
  // Ends the stream: the session fails before this returns, and Extension::leave() is called.
  virtual void cut() noexcept = 0;
  // Goes on with an announced message that met its receive over another session.
  virtual void resume(std::uint64_t number, const Matched& matched) noexcept = 0;
  virtual bool at_rest() const noexcept = 0;  // no announced message of the peer is under way

 protected:
  ~ExtensionHost() = default;
};

// The outcome of a request that happens once.
struct PastOutcome {
  Errc error = Errc::ok;
  std::vector<std::byte> result{};  // former values
};

// What is known of an announced message.
enum class Standing : std::uint8_t {
  unknown,  // it is announced for the first time
  waiting,  // it waits for a receive; its origin is this session from now on
  resumed,  // it had met a receive: ExtensionHost::resume() was called
  done,     // it is over: Extension::message_outcome()
  refused,  // no peer may announce it
};

// The guest of one session.
class Extension {
 public:
  virtual ~Extension() = default;

  // --- requests that the session does not know
  // Errc::protocol: no peer may send this one. Else it has been answered. May throw std::bad_alloc.
  virtual Errc on_request(const FrameHeader& frame) = 0;
  virtual void on_post(const FrameHeader& frame) noexcept = 0;  // this side posts such a one
  // Whether the peer can be reached over other sessions, too, so that the end of this one is not the peer's.
  virtual bool one_of_several() const noexcept = 0;

  // --- requests that happen once: happens_once() says which
  virtual bool may_come(std::uint64_t number) const noexcept = 0;  // false: no peer may send it
  virtual const PastOutcome* outcome(
      std::uint64_t number) const noexcept = 0;  // null: it was not done before
  // Before it is done: from then on record() needs no memory. Throws std::bad_alloc.
  virtual void make_room(std::size_t result_bytes) = 0;
  virtual void record(std::uint64_t number, Errc outcome, std::span<const std::byte> result) noexcept = 0;
  // Of the initiator, whose pieces may come over several sessions. Null: they all come over this one.
  virtual ArrayCounts* arrays() noexcept = 0;

  // --- messages with a number
  virtual bool took(std::uint64_t number) = 0;  // a small one was taken before, over whichever session
  virtual Standing announce(std::uint64_t number, MessageOrigin& origin) = 0;  // throws std::bad_alloc
  virtual Errc message_outcome(std::uint64_t number) const noexcept = 0;
  virtual bool shares(
      std::uint64_t number) const noexcept = 0;  // the message may come over other sessions again
  virtual void fetching(std::uint64_t number, const Matched& matched) noexcept = 0;  // it met a receive
  virtual void done(std::uint64_t number, Errc error) noexcept = 0;  // it was received, or nobody wants it
  virtual MessageOrigin* heir() noexcept = 0;  // takes over what this session leaves; null: nobody does

  // --- the end: the stream is gone
  virtual void leave() noexcept = 0;
};

// Makes the extension of each session of a context.
class ExtensionMaker {
 public:
  virtual std::unique_ptr<Extension> make(ExtensionHost& host) = 0;

 protected:
  ~ExtensionMaker() = default;
};

// The place of an extension in a session, which is empty in most of them. It asks the guest only about what
// concerns it, so that other requests pay for one comparison.
class Guest final {
 public:
  void move_in(std::unique_ptr<Extension> extension) noexcept { extension_ = std::move(extension); }

  // A peer that wants to join is told that nobody is at home; all else comes after a join.
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

  bool took(const FrameHeader& frame) { return frame.id != 0 && extension_ && extension_->took(frame.id); }
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
  ArrayCounts arrays_;  // of the peer, where they come over this session alone
};

}  // namespace fab

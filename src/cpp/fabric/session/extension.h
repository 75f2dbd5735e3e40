#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "fabric/messages/receive_queue.h"
#include "fabric/session/array_counts.h"
#include "fabric/session/frames/frame.h"
#include "fabric/session/past_requests.h"
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

// What a link adds to one session.
class Extension {
 public:
  explicit Extension(ExtensionHost& host) : host_(host) {}  // which outlives this object
  virtual ~Extension() = default;

  // Serves a request that the session itself does not know, and answers it. Errc::protocol: no peer may send
  // this request. May throw std::bad_alloc.
  virtual Errc on_request(const FrameHeader& frame) = 0;
  // This side posts such a request.
  virtual void on_post(const FrameHeader& frame) noexcept = 0;
  // Whether the peer can be reached over other sessions too, so that the peer may live on when this one ends.
  virtual bool one_of_several() const noexcept = 0;
  // The stream is gone. Errc::canceled: because this side closes.
  virtual void leave(Errc why) noexcept = 0;

  // Null while all that the peer sends comes over this session alone.
  PastRequests* past() const noexcept { return past_; }
  ExtensionHost& host() const noexcept { return host_; }

 protected:
  void belongs_to(PastRequests* past) noexcept { past_ = past; }

 private:
  ExtensionHost& host_;
  PastRequests* past_ = nullptr;
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

  // Whether no peer may send this request, or not any more.
  bool is_stale(const FrameHeader& frame) const noexcept {
    return happens_once(frame) && (!past() || past()->is_stale(frame.id));
  }
  // False: there is no room for its outcome, so that it is refused and nothing is done.
  bool may_come(const FrameHeader& frame) const noexcept {
    return !happens_once(frame) || past()->may_come(frame.id);
  }
  const PastOutcome* outcome(const FrameHeader& frame) const noexcept {
    return happens_once(frame) ? past()->outcome(frame.id) : nullptr;
  }
  void make_room(const FrameHeader& frame, std::size_t result_bytes) {
    if (happens_once(frame)) past()->make_room(result_bytes);
  }
  void record(const FrameHeader& frame, Errc outcome, std::span<const std::byte> result = {}) noexcept {
    if (happens_once(frame)) past()->record(frame.id, outcome, result);
  }
  ArrayCounts& arrays() noexcept { return past() ? past()->arrays() : arrays_; }

  bool came(const FrameHeader& frame) {
    return frame.id != 0 && past() && past()->came(frame.id, extension_->host());
  }
  Standing announce(const FrameHeader& frame, MessageOrigin& origin) {
    if (frame.id & kStreamOnly) return Standing::unknown;
    return past() ? past()->announce(frame.id, extension_->host(), origin) : Standing::refused;
  }
  Errc message_outcome(std::uint64_t number) const noexcept { return past()->message_outcome(number); }
  // Whether the peer may announce this message again over another session.
  bool shares(std::uint64_t number) const noexcept { return !(number & kStreamOnly) && past(); }
  void fetching(std::uint64_t number, const Matched& matched) noexcept {
    if (shares(number)) past()->fetching(number, matched);
  }
  void done(std::uint64_t number, Errc error) noexcept {
    if (shares(number)) past()->done(number, error);
  }
  // Takes over the messages of this session that are still unmatched when it ends; null: nobody does.
  MessageOrigin* heir() noexcept { return past(); }

  void leave(Errc why) noexcept {
    if (extension_) extension_->leave(why);
  }

 private:
  PastRequests* past() const noexcept { return extension_ ? extension_->past() : nullptr; }

  std::unique_ptr<Extension> extension_;
  ArrayCounts arrays_;  // of a peer that uses this session alone
};

}  // namespace fab

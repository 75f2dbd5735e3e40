#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "fabric/session/frames/reader.h"
#include "fabric/session/initiator.h"
#include "fabric/session/messenger.h"
#include "fabric/session/stream_end.h"
#include "fabric/session/target.h"

namespace fab {

// Put, get, atomics and messages as frames over a reliable byte stream (a socket, a ring): one connection
// between two contexts. Knows no transport: the owner moves output() and input() and calls sent() and
// received(). Payloads go from and to registered memory without a bounce. Used under its context's lock.
//
// Bytes become frames in the Reader; requests of this side and their answers are the Initiator's, those of
// the peer the Target's, messages the Messenger's. What is to be sent waits in the SessionOutput.
class Session final : private ExtensionHost {
 public:
  using Services = SessionServices;
  explicit Session(Services services);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // --- posting
  // As Path::post; short when the limits are reached. A transfer for which there is no memory waits as for
  // room while something is outstanding, and fails with no_memory otherwise.
  std::size_t post(std::span<const Transfer> batch) noexcept;
  // False: full, or no memory.
  bool post_notify(std::uint64_t data, std::uint64_t length) noexcept {
    return initiator_.post_notify(data, length);
  }

  // --- byte stream
  // Whether memory was lacking for what the peer is owed, so that the owner has to end the stream with
  // no_memory. Nothing is sent from then on. received() and accept() tell it, too; in between, on_output() is
  // called.
  bool broken() const noexcept { return end_.output.broken(); }
  // What to send next, at most `max` pieces, which stay valid until sent() or fail(); 0 if there is nothing.
  std::size_t output(iovec* out, std::size_t max) noexcept;
  void sent(std::size_t bytes) noexcept;
  bool has_output() const noexcept { return !broken() && !end_.output.empty(); }
  std::size_t queued() const noexcept {
    return end_.output.queued();
  }  // bytes of requests that wait to be sent
  // Where to put received bytes, in this order, at most `max` >= 2 pieces, never empty. Valid until
  // received(), forget() or fail().
  std::size_t input(iovec* out, std::size_t max = 2) noexcept { return reader_.input(out, max); }
  // ok, or why the connection must go: protocol (the peer sent nonsense) or no_memory.
  Errc received(std::size_t bytes) noexcept;
  // In a turn after Services::on_more.
  void go_on() noexcept { messenger_.run_fetches(); }
  // After a round of received(): queues the gathered ack, if any. True: it still waits, which it does only if
  // it `may_wait`, while it is of messages and not of many.
  bool end_turn(bool may_wait = false) noexcept {
    if (may_wait && end_.answers.can_wait()) return true;
    end_.answers.flush();
    return false;
  }
  // A message that came beside the stream; nothing but its head is known.
  // Tells as received() does.
  Errc accept(Matched& arrived, const std::byte* payload) noexcept {
    return messenger_.accept(arrived, payload);
  }

  // --- control
  Sender& sender() noexcept { return *end_.services.sender; }
  // Whether the peer has something to do for this side: nothing is heard of one that cannot.
  bool awaits_peer() const noexcept { return initiator_.outstanding() != 0 || messenger_.awaits_peer(); }
  // As Path::oldest(); Initiator::kNone if all has settled.
  std::uint64_t oldest() const noexcept { return std::min(initiator_.oldest(), messenger_.oldest()); }
  // What waits for the peer, by kind.
  const Initiator& requests() const noexcept { return initiator_; }
  const Messenger& messages() const noexcept { return messenger_; }
  bool one_of_several() const noexcept { return end_.guest.one_of_several(); }  // ways to the peer
  void forget(std::uint32_t region) noexcept;
  // The connection is gone: everything outstanding settles with `error`.
  void fail(Errc error) noexcept;
  // The transport met memory that is not there (EFAULT) in the first piece of output() or of input() with
  // `max` 2: the request in question fails with `bounds`, the stream goes on. False: no such piece was shown.
  bool output_fault() noexcept;
  bool input_fault() noexcept { return reader_.fault(); }
  // Asks for a sign of life.
  void ping() noexcept { end_.answers.tell({.type = FrameType::ping}); }
  // From now on the peer has what is handed to the stream, and what was (Handover).
  void held() noexcept;
  // The peer has told that the requests are lost which have no answer yet: none of them is served any more.
  // Messages that it counts as sent are still taken.
  void peer_gave_up() noexcept { end_.peer_gave_up = true; }

 private:
  Errc consume();
  Errc on_frame();
  Errc on_answer();
  Errc on_request();
  void on_payload();

  // ExtensionHost
  void answer(Errc outcome, FrameType request) noexcept override { end_.answers.give(outcome, request); }
  const std::shared_ptr<Sender>& peer() const noexcept override { return end_.services.sender; }
  void cut() noexcept override { end_.services.on_cut(); }
  void resume(std::uint64_t number, const Matched& matched) noexcept override {
    messenger_.resume(number, matched);
  }
  bool at_rest() const noexcept override { return messenger_.at_rest(); }

  StreamEnd end_;
  Initiator initiator_{end_};
  Target target_{end_};
  Messenger messenger_{end_, initiator_};
  Reader reader_;
};

}  // namespace fab

#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "base/lifetime.h"
#include "fabric/session/frames/reader.h"
#include "fabric/session/initiator.h"
#include "fabric/session/messenger.h"
#include "fabric/session/stream_end.h"
#include "fabric/session/target.h"

namespace fab {

// One connection between two contexts: puts, gets, atomics and messages travel as frames over a reliable byte
// stream (a socket, a ring). A session does not know the transport: its owner moves the bytes that output()
// and input() show, and calls sent() and received(). Payloads go from and to registered memory without a
// bounce buffer. A session is used under the lock of its context.
//
// The Reader makes frames of bytes. The Initiator posts the requests of this side and takes their answers,
// the Target serves the requests of the peer, and the Messenger sends and receives messages. What is to be
// sent waits in the SessionOutput.
class Session final : private ExtensionHost {
 public:
  using Services = SessionServices;
  explicit Session(Services services);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // --- posting
  // Posts a prefix of the batch and returns its length, as Path::post() does. The prefix is short when a
  // limit is reached. A transfer for which there is no memory waits while something is outstanding, and fails
  // with no_memory otherwise.
  std::size_t post(std::span<const Transfer> batch) noexcept;
  // Tells of a put whose bytes this side has moved itself. Returns false where there is no room or no memory.
  bool post_notify(const Transfer& put) noexcept { return initiator_.post_notify(put); }

  // --- byte stream
  // Whether there was no memory for something that has to be told to the peer. The owner has to end the
  // stream with no_memory then, and nothing is sent any more. received() and accept() return it too; when it
  // happens outside of them, on_output() is called.
  bool broken() const noexcept { return end_.output.broken(); }
  // Shows what to send next, in at most `max` pieces, which stay valid until sent() or fail(). Returns their
  // number; 0: there is nothing to send.
  std::size_t output(iovec* out, std::size_t max) noexcept;
  void sent(std::size_t bytes) noexcept;
  bool has_output() const noexcept { return !broken() && !end_.output.empty(); }
  // The bytes of requests that wait to be sent.
  std::size_t queued() const noexcept { return end_.output.queued(); }
  // Shows where received bytes go, in at most `max` >= 2 pieces that are filled in order. They are never
  // empty, and valid until received(), forget() or fail().
  std::size_t input(iovec* out, std::size_t max = 2) noexcept { return reader_.input(out, max); }
  // Takes in bytes that were put there. Returns ok, or why the connection must end: protocol (the peer sent
  // what no peer may send) or no_memory.
  Errc received(std::size_t bytes) noexcept;
  // Goes on after Services::on_more, in a later turn.
  void go_on() noexcept { messenger_.run_fetches(); }
  // Is called after a round of received(), and queues the gathered ack if there is one. With `may_wait` an
  // ack of a few messages only may go with a later frame. True: it waits.
  bool end_turn(bool may_wait = false) noexcept {
    if (may_wait && end_.answers.can_wait()) return true;
    end_.answers.flush();
    return false;
  }
  // A small message came through the eager ring of the link and not through the stream. Only its head is
  // known. Returns what received() returns.
  Errc accept(Matched& arrived, const std::byte* payload) noexcept {
    return messenger_.accept(arrived, payload);
  }

  // --- control
  Sender& sender() noexcept { return *end_.services.sender; }
  // Whether the peer has something to do for this side. A peer that stays silent then may be gone (Liveness).
  bool awaits_peer() const noexcept { return initiator_.outstanding() != 0 || messenger_.awaits_peer(); }
  // The number of the oldest transfer that has not settled, as Path::oldest() tells it; Initiator::kNone if
  // all have settled.
  std::uint64_t oldest() const noexcept { return std::min(initiator_.oldest(), messenger_.oldest()); }
  // What waits for the peer, by kind.
  const Initiator& requests() const noexcept FAB_LIFETIME_BOUND { return initiator_; }
  const Messenger& messages() const noexcept FAB_LIFETIME_BOUND { return messenger_; }
  // Whether this session is one of several ways to the peer.
  bool one_of_several() const noexcept { return end_.extension.one_of_several(); }
  void forget(std::uint32_t region) noexcept;
  // The connection is gone: everything that is outstanding settles with `error`.
  void fail(Errc error) noexcept;
  // The transport met memory that is not there (EFAULT) in the first piece of output(), or of input() with
  // `max` 2, and tells by output_fault() or incoming().fault(). The request that the piece belongs to fails
  // with `bounds`, and the stream goes on. False: no such piece was shown.
  bool output_fault() noexcept;
  // What has come, as frames.
  Reader& incoming() noexcept FAB_LIFETIME_BOUND { return reader_; }
  const Reader& incoming() const noexcept FAB_LIFETIME_BOUND { return reader_; }
  // Asks the peer for a sign of life.
  void ping() noexcept { end_.answers.tell({.type = FrameType::ping}); }
  // From now on the peer gets what was handed to the stream and what will be, even if this process ends
  // (Handover::when_held).
  void held() noexcept;
  // The peer has told its user that the requests without an answer are lost, so none of them is served any
  // more. Messages that the peer counts as sent are still taken.
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

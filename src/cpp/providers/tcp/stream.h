#pragma once

#include <memory>
#include <string>

#include "base/lifetime.h"
#include "base/network/poller.h"
#include "base/queues/linked_list.h"
#include "fabric/admission/guests.h"
#include "fabric/admission/pace.h"
#include "fabric/completion/security_log.h"
#include "fabric/session/liveness.h"
#include "fabric/session/session.h"
#include "providers/tcp/connection.h"
#include "providers/tcp/unanswered_bytes.h"

namespace fab::tcp {

class TcpEndpoint;
struct StreamKey;

// Tags of two lists: streams that have something to send, and streams that have only acks to send.
struct Unsent;
struct Unhurried;
// Tag of a list of streams that may hold bytes of which the poller knows nothing.
struct Unread;

// All that goes between this endpoint and one other under one authorization key: the session and, once there
// is one, its connection. Both directions share the connection, whichever side called. What is posted before
// there is a connection waits in the session.
class TcpStream final : public ReadyHandler,
                        private Guest,
                        public Linked<Unsent>,
                        public Linked<Unhurried>,
                        public Linked<Unread> {
 public:
  // `names`: by which the address vector may know the peer (Sender). `where`: what the peer's name says, or
  // what a caller says of itself.
  TcpStream(TcpEndpoint& endpoint, std::vector<Part> names, EndpointAddress where, std::size_t auth_index);
  ~TcpStream() override;

  const EndpointAddress& where() const noexcept FAB_LIFETIME_BOUND { return where_; }  // the peer
  std::uint64_t number() const noexcept { return number_; }  // tells this stream from earlier and later ones
  std::uint64_t peer_number() const noexcept { return peer_number_; }  // the other end's number
  Errc state() const noexcept { return state_; }
  const PathCounts& counts() const noexcept FAB_LIFETIME_BOUND { return counts_; }
  std::uint64_t oldest() const noexcept { return session_.oldest(); }  // as Path::oldest()
  std::string remote() const;

  // --- connecting
  void connect(std::vector<SocketAddress> routes) noexcept;
  bool connecting() const noexcept { return attempt_ != nullptr; }
  bool open() const noexcept { return socket_.valid(); }
  // `peer_key`: the public key that the other end has proven; kNoPublicKey: none.
  void adopt(ByteStream socket, std::uint64_t peer_number, const PublicKey& peer_key) noexcept;
  // Two calls have crossed, and ours goes first: the other one waits until ours has succeeded or failed.
  void defer(std::unique_ptr<IncomingConnection> caller) noexcept;
  Sender& sender() noexcept { return session_.sender(); }

  // --- data path
  std::size_t post(std::span<const Transfer> batch) noexcept;
  // Takes in what has come. True if anything has, even if only the end of the stream.
  bool receive() noexcept;
  // Sends what the socket takes now; true if it took anything. Ends a stream that cannot go on, so the
  // session must not call this.
  bool send() noexcept;
  bool write_blocked() const noexcept { return write_blocked_; }
  void forget(std::uint32_t region) noexcept;

  // Looks after deadlines; true if there is still something to look after.
  bool tick() noexcept;
  void fail(Errc error) noexcept;
  // Ends the connection, and calls that are under way. Nothing is told to this stream any more.
  void disconnect() noexcept;
  // Sends what it can; whether acks, or messages of this side, are still on this machine, as for
  // Lingerer::lingers(). Those that the peer's kernel has acknowledged stay there for the peer to read,
  // whatever happens here.
  bool lingers() noexcept;
  // Ends the stream as fail() does, but tells nobody else, because the endpoint ends.
  void detach(Errc error) noexcept;

  unsigned idle_polls = 0;  // kept by the endpoint
  // Kept by the endpoint as well: whom this side has found at an address by which alone it knew the peer.
  // kAnybody: nobody who has proven an id, or the peer is known by its id.
  EndpointId found = kAnybody;
  const StreamKey* place = nullptr;  // and where the endpoint has it

 private:
  void on_ready(std::uint32_t events) noexcept override;
  bool flush() noexcept;  // as send(), but never ends the stream
  void on_attempt(PendingConnection& attempt) noexcept;
  void attempt_failed(Errc error) noexcept;
  void end_calls() noexcept;
  void on_output() noexcept;
  bool take_in() noexcept;
  bool has_output() const noexcept { return session_.has_output() || socket_.unsent(); }
  bool broken() const noexcept { return starved_ || session_.broken(); }
  void end_if_broken() noexcept;
  void wait_writable(bool on) noexcept;
  bool half_frame_stays() noexcept;
  std::uint64_t signs_of_life() noexcept;
  // What a Guest answers. Only a stream that the peer has called is one.
  std::uint64_t heard() const noexcept override { return received_; }
  bool has_spoken() const noexcept override { return session_.incoming().frames() != 0; }
  Work work() noexcept override;
  bool proven() noexcept override { return session_.sender().proven(); }
  int descriptor() const noexcept override { return socket_.get(); }
  void evict(const char* why) noexcept override;
  void note(SecurityEvent event, const char* what) const noexcept;

  TcpEndpoint* endpoint_;  // null once detached
  const EndpointAddress where_;
  const std::size_t auth_index_;
  const std::uint64_t number_;
  std::uint64_t peer_number_ = 0;
  PathCounts counts_;
  Session session_;
  Errc state_ = Errc::ok;

  ByteStream socket_;
  bool called_ = false;  // this side has called
  bool write_blocked_ = false;
  bool send_ended_ = false;
  bool starved_ = false;  // what was to be sealed could not be
  bool receiving_ = false;
  std::unique_ptr<OutgoingConnection> attempt_;
  std::unique_ptr<IncomingConnection> deferred_;

  std::uint64_t received_ = 0, sent_ = 0;  // bytes
  UnansweredBytes unanswered_;
  Liveness liveness_;
  Liveness completes_frames_;  // the peer, those that it has begun
  Pace pace_;
};

}  // namespace fab::tcp

#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/network/poller.h"
#include "base/queues/linked_list.h"
#include "fabric/session/liveness.h"
#include "fabric/session/session.h"
#include "providers/tcp/connection.h"

namespace fab::tcp {

class TcpEndpoint;

// Lists: of streams that have something to send, and of streams that have nothing to send but acks.
struct Unsent;
struct Unhurried;

// All that goes between this endpoint and one other under one authorization key: the session and, once there
// is one, its connection. Whoever calls first, both directions share it. What is posted before the connection
// stands waits in the session.
class TcpStream final : public ReadyHandler, public Linked<Unsent>, public Linked<Unhurried> {
 public:
  TcpStream(TcpEndpoint& endpoint, Part peer, EndpointAddress where, std::size_t auth_index);
  ~TcpStream() override;

  const EndpointAddress& where() const noexcept { return where_; }  // the peer
  std::uint64_t number() const noexcept { return number_; }  // tells this stream from earlier and later ones
  std::uint64_t peer_number() const noexcept { return peer_number_; }  // the same of the other end
  Errc state() const noexcept { return state_; }
  const PathCounts& counts() const noexcept { return counts_; }
  std::uint64_t oldest() const noexcept { return session_.oldest(); }  // as Path
  std::string remote() const;

  // --- connecting
  void connect(std::vector<SocketAddress> routes) noexcept;
  bool connecting() const noexcept { return attempt_ != nullptr; }
  bool open() const noexcept { return socket_.valid(); }
  void adopt(OwnFd socket, std::uint64_t peer_number) noexcept;
  // Two calls have crossed, and ours goes first: the other one waits until ours has succeeded or failed.
  void defer(std::unique_ptr<IncomingConnection> caller) noexcept;
  void known_as(PeerId peer) noexcept { session_.sender().known_as(peer); }

  // --- data path
  std::size_t post(std::span<const Transfer> batch) noexcept;
  bool receive() noexcept;  // what has come; true if anything, maybe the end
  // What the socket takes now; true if anything. Ends a stream that cannot go on, so the session must not
  // call it.
  bool send() noexcept;
  bool write_blocked() const noexcept { return write_blocked_; }
  void forget(std::uint32_t region) noexcept;
  void on_ready(std::uint32_t events) noexcept override;

  // Looks after deadlines; true if there is still something to look after.
  bool tick() noexcept;
  void fail(Errc error) noexcept;
  // Ends its connection and its calls: nothing is told to it any more.
  void disconnect() noexcept;
  // Before the endpoint ends: sends what waits and closes this direction if the peer may not have read
  // messages of this side, which a close with unread bytes here would make the kernel throw away; then waits
  // for the peer to close as well.
  void begin_close(Deadline deadline) noexcept;
  void await_close(Deadline deadline) noexcept;
  // The endpoint ends: as fail(), without telling anybody else.
  void detach(Errc error) noexcept;

  unsigned idle_polls = 0;  // kept by the endpoint

 private:
  bool flush() noexcept;  // as send(), and ends nothing
  void on_attempt(PendingConnection& attempt) noexcept;
  void attempt_failed(Errc error) noexcept;
  void end_calls() noexcept;
  void on_output() noexcept;
  bool take_in() noexcept;
  void end_if_broken() noexcept;
  void wait_writable(bool on) noexcept;

  TcpEndpoint* endpoint_;  // null once detached
  const Part peer_;
  const EndpointAddress where_;
  const std::size_t auth_index_;
  const std::uint64_t number_;
  std::uint64_t peer_number_ = 0;
  PathCounts counts_;
  Session session_;
  Errc state_ = Errc::ok;

  OwnFd socket_;
  bool write_blocked_ = false;
  bool send_ended_ = false;
  bool closing_ = false;
  bool receiving_ = false;
  std::unique_ptr<OutgoingConnection> attempt_;
  std::unique_ptr<IncomingConnection> deferred_;

  std::uint64_t received_ = 0;  // bytes
  Liveness liveness_;
};

}  // namespace fab::tcp

#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/network/poller.h"
#include "fabric/session/frames/handshake.h"

namespace fab::tcp {

// A connection until it carries frames: it is made, and has its handshake. Reads not a byte beyond the
// messages of that. Tells its owner once, from on_ready() or tick(), that it arrived or failed; the owner may
// destroy it there, and that ends its events as well.
class PendingConnection : public ReadyHandler {
 public:
  using Told = std::function<void(PendingConnection&)>;
  using Attended = std::chrono::nanoseconds;  // Ticker::attended()
  ~PendingConnection() override;
  PendingConnection(const PendingConnection&) = delete;
  PendingConnection& operator=(const PendingConnection&) = delete;

  bool arrived() const noexcept { return arrived_; }
  Errc error() const noexcept { return error_; }  // why it failed
  // Gives up where the time is over and what has arrived by now does not complete it.
  void tick(Attended now) noexcept;
  int socket() const noexcept { return socket_.get(); }
  OwnFd take_socket() noexcept;  // no longer watched by this object
  void pause() noexcept;         // stays connected, but is no longer told of anything
  void on_ready(std::uint32_t events) noexcept override;

 protected:
  PendingConnection(Poller& poller, Attended deadline, Told told);
  bool watch(OwnFd socket, std::uint32_t events) noexcept;
  void unwatch() noexcept;
  // An exception ends the exchange: no memory.
  virtual void on_connected() {}
  virtual Handshake::Step on_message(std::string_view message) = 0;
  virtual bool done() const noexcept = 0;  // the handshake
  void send(const std::string& message) noexcept;
  void fail(Errc error) noexcept;

  Poller& poller_;
  OwnFd socket_;
  bool connected_ = false;

 private:
  bool decided() const noexcept { return arrived_ || error_ != Errc::ok; }
  void look() noexcept;
  void read();
  void take(const std::string& message);
  void tell() noexcept;

  const Attended deadline_;
  Told told_;
  std::string buffer_;  // one message, so far
  bool arrived_ = false;
  Errc error_ = Errc::ok;
};

// Calls a peer: tries its addresses in turn.
class OutgoingConnection final : public PendingConnection {
 public:
  // `auth_index`: of the key to prove. `stream`: this side's number for it.
  OutgoingConnection(Poller& poller, const Identity& self, std::size_t auth_index,
                     const EndpointAddress& peer, std::vector<SocketAddress> addresses, std::uint64_t stream,
                     Attended deadline, Told told);
  // Starts; false if every address failed at once.
  bool start() noexcept;
  std::uint64_t peer_stream() const noexcept { return handshake_.peer_stream(); }

 private:
  void on_connected() override;
  Handshake::Step on_message(std::string_view message) override { return handshake_.receive(message); }
  bool done() const noexcept override { return handshake_.done(); }

  CallerHandshake handshake_;
  const std::vector<SocketAddress> addresses_;
  std::size_t next_ = 0;
};

// Answers a caller. Once it arrived, the owner says welcome() or drops it.
class IncomingConnection final : public PendingConnection {
 public:
  IncomingConnection(Poller& poller, const Identity& self, OwnFd socket, Attended deadline, Told told);
  const Hello& hello() const noexcept { return handshake_.hello(); }
  // Of the key that the caller proved.
  std::size_t auth_index() const noexcept { return handshake_.auth_index(); }
  // The last message; false, with error(), if the caller is gone, or no memory is left.
  bool welcome(std::uint64_t stream) noexcept;

 private:
  Handshake::Step on_message(std::string_view message) override { return handshake_.receive(message); }
  bool done() const noexcept override { return handshake_.done(); }

  AcceptorHandshake handshake_;
};

}  // namespace fab::tcp

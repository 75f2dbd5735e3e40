#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/network/poller.h"
#include "fabric/session/frames/handshake.h"
#include "providers/tcp/byte_stream.h"

namespace fab::tcp {

// A connection before it carries frames: it is made, encrypted if this side does that, and has its handshake.
// Its stream has all bytes beyond the messages of the handshake. It tells its owner once, from on_ready() or
// tick(), that it has arrived or failed. The owner may destroy it there, which also ends its events.
class PendingConnection : public ReadyHandler {
 public:
  using Told = std::function<void(PendingConnection&)>;
  using Attended = std::chrono::nanoseconds;  // Ticker::attended()
  ~PendingConnection() override;
  PendingConnection(const PendingConnection&) = delete;
  PendingConnection& operator=(const PendingConnection&) = delete;

  bool arrived() const noexcept { return arrived_; }
  Errc error() const noexcept { return error_; }    // why it failed
  bool late() const noexcept { return late_; }      // because its deadline has passed
  bool silent() const noexcept { return silent_; }  // no whole message has come so far
  // Gives up if the deadline has passed, unless what has arrived by now completes the handshake.
  void tick(Attended now) noexcept;
  int socket() const noexcept { return socket_.get(); }
  ByteStream take_stream() noexcept;  // no longer watched by this object
  void pause() noexcept;              // stays connected, but is no longer told of anything
  void on_ready(std::uint32_t events) noexcept override;

 protected:
  PendingConnection(Poller& poller, const Identity& self, Attended deadline, Told told);
  bool watch(OwnFd socket, std::uint32_t events) noexcept;
  void unwatch() noexcept;
  // An exception from these ends the handshake with no_memory.
  virtual void on_connected() {}
  // TLS begins, and is done.
  virtual std::unique_ptr<Tls> begin_tls() = 0;
  virtual void on_secured(const std::array<std::uint8_t, 32>& binding) = 0;
  virtual Handshake::Step on_message(std::string_view message) = 0;
  virtual bool done() const noexcept = 0;  // whether the handshake is complete
  Tls::Records records() const noexcept {
    return self_.kernel_tls ? Tls::Records::in_kernel : Tls::Records::here;
  }
  bool secure();
  void read();
  void send(const std::string& message) noexcept;
  void fail(Errc error) noexcept;

  Poller& poller_;
  const Identity& self_;
  ByteStream socket_;
  bool connected_ = false;

 private:
  bool decided() const noexcept { return arrived_ || error_ != Errc::ok; }
  void look() noexcept;
  bool hears_plain() noexcept;
  void take(const std::string& message);
  void tell() noexcept;

  const Attended deadline_;
  Told told_;
  std::string buffer_;  // what has come of the present message
  bool arrived_ = false, late_ = false, silent_ = true;
  bool to_secure_;  // what this side encrypts is not encrypted yet
  Errc error_ = Errc::ok;
};

// Calls a peer: tries its addresses in turn.
class OutgoingConnection final : public PendingConnection {
 public:
  struct Call {
    std::size_t auth_index;  // of the authorization key to prove
    const EndpointAddress& peer;
    std::vector<SocketAddress> addresses;
    std::uint64_t stream;  // this side's number of the stream
  };
  OutgoingConnection(Poller& poller, const Identity& self, Call call, Attended deadline, Told told);
  // Starts to call. False, with error(): every address failed at once.
  bool start() noexcept;
  std::uint64_t peer_stream() const noexcept { return handshake_.peer_stream(); }
  const EndpointId& peer_id() const noexcept { return handshake_.peer_id(); }
  const std::optional<WireVersions>& other_versions() const noexcept { return handshake_.other_versions(); }
  // A copy, because the connection may end before it is used.
  PublicKey peer_key() const noexcept { return handshake_.peer_key(); }
  const std::string& secret() const noexcept { return handshake_.secret(); }

 private:
  void on_connected() override;
  std::unique_ptr<Tls> begin_tls() override { return Tls::call(socket_.get(), secret(), records()); }
  void on_secured(const std::array<std::uint8_t, 32>& binding) override;
  Handshake::Step on_message(std::string_view message) override { return handshake_.receive(message); }
  bool done() const noexcept override { return handshake_.done(); }

  CallerHandshake handshake_;
  const std::vector<SocketAddress> addresses_;
  std::size_t next_ = 0;
};

// Answers a caller. Once it has arrived, the owner calls welcome() or drops it.
class IncomingConnection final : public PendingConnection {
 public:
  IncomingConnection(Poller& poller, const Identity& self, OwnFd socket, Attended deadline, Told told);
  const Hello& hello() const noexcept { return handshake_.hello(); }
  // The index of the authorization key that the caller proved, and with which secret.
  std::size_t auth_index() const noexcept { return handshake_.auth_index(); }
  const std::string& secret() const noexcept { return handshake_.secret(); }
  // Whether the caller has proven that its id is its own, and the public key that it has proven to have.
  bool proven() const noexcept { return handshake_.proven(); }
  const PublicKey& peer_key() const noexcept { return handshake_.peer_key(); }
  // Sends the last message of the handshake. False, with error(): the caller is gone, or there is no memory.
  bool welcome(std::uint64_t stream) noexcept;

 private:
  std::unique_ptr<Tls> begin_tls() override;
  void on_secured(const std::array<std::uint8_t, 32>& binding) override { handshake_.encrypted(binding); }
  Handshake::Step on_message(std::string_view message) override { return handshake_.receive(message); }
  bool done() const noexcept override { return handshake_.done(); }

  AcceptorHandshake handshake_;
};

}  // namespace fab::tcp

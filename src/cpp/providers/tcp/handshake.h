#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "base/network/poller.h"
#include "fabric/session/frames/hello.h"

namespace fab::tcp {

// Who this side is.
struct Identity {
  EndpointId id{};
  Part part;  // of its name
  const AuthKeys* keys = nullptr;
};

// The exchange before a connection carries frames: hello → welcome, or, with a key, hello → challenge → proof
// → welcome. Whoever calls proves itself first, so that a stranger learns nothing. Reads not a byte beyond
// its own messages. Tells its owner once, from on_ready() or tick(), that it arrived or failed; the owner may
// destroy it there, and that ends its events as well.
class Handshake : public ReadyHandler {
 public:
  using Told = std::function<void(Handshake&)>;
  using Attended = std::chrono::nanoseconds;  // Ticker::attended()
  ~Handshake() override;
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  bool arrived() const noexcept { return arrived_; }
  Errc error() const noexcept { return error_; }  // why it failed
  // Gives up where the time is over and what has arrived by now does not complete it.
  void tick(Attended now) noexcept;
  std::uint64_t peer_stream() const noexcept { return peer_stream_; }
  int socket() const noexcept { return socket_.get(); }
  OwnFd take_socket() noexcept;  // no longer watched by this object
  void rest() noexcept;          // stays connected, but is no longer told of anything
  void on_ready(std::uint32_t events) noexcept override;

 protected:
  Handshake(Poller& poller, const Identity& self, Attended deadline, Told told);
  bool watch(OwnFd socket, std::uint32_t events) noexcept;
  void unwatch() noexcept;
  // An exception ends the exchange: no memory.
  virtual void on_connected() {}
  virtual void on_message(HelloType type, std::string_view body) = 0;
  void send(const std::string& message) noexcept;
  void arrive() noexcept;
  void fail(Errc error) noexcept;

  Poller& poller_;
  const Identity& self_;
  OwnFd socket_;
  std::uint64_t peer_stream_ = 0;
  bool connected_ = false;
  bool arrived_ = false;
  Errc error_ = Errc::ok;

 private:
  bool decided() const noexcept { return arrived_ || error_ != Errc::ok; }
  void look() noexcept;
  void read();
  void tell() noexcept;

  const Attended deadline_;
  Told told_;
  std::string buffer_;  // one message, so far
};

// Calls a peer: tries its addresses in turn.
class OutgoingHandshake final : public Handshake {
 public:
  // `key`: the index of the one to prove.
  OutgoingHandshake(Poller& poller, const Identity& self, std::size_t key, const Whereabouts& peer,
                    std::vector<SocketAddress> addresses, std::uint64_t stream, Attended deadline, Told told);
  // Starts; false if every address failed at once.
  bool start() noexcept;

 private:
  void on_connected() override;
  void on_message(HelloType type, std::string_view body) override;

  const std::string& secret_;
  Hello hello_;
  std::optional<Nonce> challenge_;  // answered, the only one: who is called cannot make this side prove more
  const std::vector<SocketAddress> addresses_;
  std::size_t next_ = 0;
};

// Answers a caller. Once it arrived, the owner says welcome() or drops it.
class IncomingHandshake final : public Handshake {
 public:
  IncomingHandshake(Poller& poller, const Identity& self, OwnFd socket, Attended deadline, Told told);
  const Hello& hello() const noexcept { return hello_; }
  std::size_t key() const noexcept { return key_; }  // index of the one that the caller proved
  // The last message; false, with error(), if the caller is gone, or no memory is left.
  bool welcome(std::uint64_t stream) noexcept;

 private:
  void on_message(HelloType type, std::string_view body) override;
  void on_hello(std::string_view body);
  void refuse(Errc reason);

  Hello hello_;
  std::size_t key_ = 0;
  Nonce challenge_{};
};

}  // namespace fab::tcp

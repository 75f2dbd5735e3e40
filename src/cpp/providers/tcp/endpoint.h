#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "base/lifetime.h"
#include "base/network/ticker.h"
#include "base/queues/linked_list.h"
#include "fabric/provider.h"
#include "providers/tcp/reception.h"
#include "providers/tcp/stream.h"

namespace fab::tcp {

// Which stream of an endpoint this is.
struct StreamKey {
  EndpointId peer;
  std::size_t auth_index;  // of its authorization key
  // Only the peer sends requests: the other end does not take this stream for the one to this endpoint,
  // because this side cannot prove its id, or the caller could not or knew only an address, or the peer is
  // this very endpoint.
  bool served = false;
  // The address that was called, if the caller knew nothing else of the peer; at the caller's end `peer` is
  // kAnybody then. Otherwise the peer's part as a whole: who makes up a name with the id of another
  // endpoint and an address of its own meets no stream of that endpoint.
  std::string address{};
  // Tells callers from each other that claim one id and have not proven it: by the key that each has
  // proven, or by a number. Nothing: the id is proven, or this side called.
  IdBinding stranger{};
  auto operator<=>(const StreamKey&) const = default;
};

// A listening port, and the streams that peers or this side began: one for each peer and authorization key,
// if both ends have proven who they are, else one for each direction.
class TcpEndpoint final : public Endpoint, private Lingerer {
 public:
  // Listens on `listen`; port 0 lets the system choose. `absent` is that of listen_tcp(). Throws Error.
  TcpEndpoint(const DomainServices& domain, const EndpointServices& services, std::string link,
              const SocketAddress& listen, const std::string& absent);
  ~TcpEndpoint() override;

  std::vector<Part> parts() const override { return {identity_.part}; }
  std::vector<std::string> socket_names() const override;
  Reach reaches(const Name& peer, std::uint16_t target, std::size_t auth_index) const override;
  std::unique_ptr<Path> connect(PeerId id, const Name& peer, std::uint16_t target,
                                std::size_t auth_index) override;
  bool progress() noexcept override;
  bool arm() noexcept override;
  void forget(std::uint32_t region) noexcept override;
  void end_removed_keys() noexcept override;

  // --- for its streams
  const DomainServices& domain() const noexcept FAB_LIFETIME_BOUND { return domain_; }
  const EndpointServices& services() const noexcept FAB_LIFETIME_BOUND { return services_; }
  const Identity& identity() const noexcept FAB_LIFETIME_BOUND { return identity_; }
  const std::string& link() const noexcept { return identity_.part.link; }
  std::chrono::nanoseconds attended() const noexcept { return ticker_.attended(); }
  Liveness::Deadlines deadlines() const noexcept {
    return {domain_.options.peer_deadline, services_.shared_deadline};
  }
  // The time, by attended(), until which a handshake that begins now must be done.
  std::chrono::nanoseconds handshake_until() const noexcept {
    return attended() + Liveness::handshake_time(deadlines());
  }
  Guests& guests() noexcept { return reception_.guests(); }
  // Gives the connection to the stream with the caller's endpoint. If there is no memory for that, the caller
  // finds its connection closed.
  void admit(std::unique_ptr<IncomingConnection> caller) noexcept;
  void poll_directly(TcpStream& stream) noexcept;   // in each turn, until it has long been idle
  void send_later(TcpStream& stream) noexcept;      // with the next turn
  void send_when_idle(TcpStream& stream) noexcept;  // with the next turn in which nothing comes
  // The stream receives with the next turn, whatever the poller says, and fetches what was announced.
  void receive_later(TcpStream& stream) noexcept;
  void watch() noexcept;  // calls tick() of streams from time to time
  // A stream to an address has found an endpoint there, by whose id callers may be known already.
  void on_found(TcpStream& there, const EndpointId& id) noexcept;
  // A peer has refused a call because it speaks other versions: the next connect() says so.
  void on_other_versions(const EndpointAddress& peer, std::size_t auth_index, WireVersions theirs) noexcept;
  // Takes the stream out of the poller, and lets go of it once none of its functions runs any more.
  void retire(TcpStream& stream) noexcept;

 private:
  static StreamKey key_of(const EndpointAddress& peer, std::size_t auth_index) {
    return {.peer = peer.id,
            .auth_index = auth_index,
            .address = peer.id == kAnybody ? peer.addresses.front().text() : peer.encode()};
  }
  StreamKey key_of(const IncomingConnection& caller);
  bool proven(const IncomingConnection& caller) const;

  bool lingers() noexcept override;
  // The peer's addresses that can be reached from here, best first.
  static std::vector<SocketAddress> routes_to(const EndpointAddress& peer);
  void tick() noexcept;
  template <class List>
  static bool flush(List& streams) noexcept;
  // What a name says about this link. A bare socket address says only where the peer listens.
  std::optional<EndpointAddress> find(const Name& peer, std::uint16_t target) const;
  std::shared_ptr<TcpStream> stream_to(const EndpointAddress& where, std::size_t wanted_auth) const;

  const DomainServices domain_;
  const EndpointServices services_;
  Identity identity_;
  Reception reception_;
  Ticker ticker_;

  using Streams = std::map<StreamKey, std::shared_ptr<TcpStream>>;
  Streams streams_;
  std::uint64_t strangers_ = 0;  // that have come and have proven nothing
  std::map<StreamKey, WireVersions> other_versions_;
  Streams::iterator next_tick_ = streams_.end();  // the next one in the present round of ticks
  // Streams that have ended. They come here with their nodes of `streams_`, so that ending needs no memory.
  std::multimap<StreamKey, std::shared_ptr<TcpStream>> ended_;
  std::array<TcpStream*, 4> polled_{};  // polled without asking the poller
  LinkedList<TcpStream, Unsent> unsent_;
  LinkedList<TcpStream, Unhurried> unhurried_;
  LinkedList<TcpStream, Unread> unread_;
  unsigned turn_ = 0;
};

}  // namespace fab::tcp

#pragma once

#include <chrono>
#include <climits>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "base/lifetime.h"
#include "base/network/ready_call.h"
#include "base/network/tcp_socket.h"
#include "fabric/admission/guests.h"
#include "providers/tcp/connection.h"

namespace fab::tcp {

class TcpEndpoint;

// Whose handshake is under way.
struct Caller {
  std::string source;
  std::unique_ptr<IncomingConnection> connection;
};

// The callers whose handshakes are under way, and which of them goes when there are too many. A flood pushes
// out itself: it is always one of the source that has the most, and of these the oldest one that has said
// nothing, or else the oldest.
class Callers final {
 public:
  void add(Caller caller);  // throws std::bad_alloc
  Caller remove(const PendingConnection& connection) noexcept;
  std::size_t size() const noexcept { return callers_.size(); }
  std::size_t of(const std::string& source) const noexcept;
  // Closes one so that one more may come from `source`, and returns it; without a connection: there is room.
  Caller make_room(const std::string& source, const Bounds& bounds) noexcept;
  // Takes out one of the source that has the most, of those with a descriptor below `below`; without a
  // connection: there is none.
  Caller take_one(int below = INT_MAX) noexcept;
  void tick(std::chrono::nanoseconds now) noexcept;  // PendingConnection::tick() of all

 private:
  Caller take_oldest(const std::string& source) noexcept;
  Caller take(std::list<Caller>::iterator at) noexcept;

  std::list<Caller> callers_;  // the oldest first
  std::map<std::string, std::size_t> by_source_;
};

// The door of an endpoint: listens, holds callers until their handshakes are done, and hands them over
// (TcpEndpoint::admit). What they and the streams that they begin hold is bounded. The last descriptors that
// the process may have are left to the program and to peers that have proven a key.
class Reception final {
 public:
  // Listens on `listen`; port 0 lets the system choose. `absent` is that of listen_tcp(). Throws Error.
  Reception(TcpEndpoint& endpoint, const SocketAddress& listen, std::string absent);
  const SocketAddress& listens_at() const noexcept FAB_LIFETIME_BOUND { return listens_at_; }
  Guests& guests() noexcept FAB_LIFETIME_BOUND { return guests_; }
  // Whether the caller's stream may stand, beside those that do; others may end for it.
  bool make_room(const IncomingConnection& caller, bool proven) noexcept;
  // Looks after deadlines, and listens again where that had to end; true if there is still something to look
  // after.
  bool tick(std::chrono::nanoseconds now) noexcept;
  void tidy() noexcept { broken_listener_.reset(); }  // nothing of it runs any more

 private:
  // The listening socket, watched by the poller.
  struct Listener {
    Listener(Reception& reception, Poller& poller, OwnFd listening)
        : socket(std::move(listening)), on_call(poller, socket.get(), [&reception] { reception.accept(); }) {}
    void stop() noexcept { on_call.end(); }
    OwnFd socket;
    ReadyCall on_call;
  };

  Bounds bounds() const noexcept;
  void accept() noexcept;
  void pause() noexcept;
  void listen_again() noexcept;
  void greet(OwnFd socket, const SocketAddress& from, const Bounds& bounds) noexcept;
  OwnFd out_of_reserve(OwnFd socket, const Bounds& bounds) noexcept;
  bool free_descriptor(const Guests::Sought& sought) noexcept;
  void on_caller(PendingConnection& told) noexcept;
  void tell_dropped(const Caller& caller, const char* why) const noexcept;

  TcpEndpoint& endpoint_;
  const std::string absent_;
  std::shared_ptr<Listener> listener_;  // null while it is broken and another cannot be opened
  const SocketAddress listens_at_;
  bool listening_ = true;                      // false while there is no descriptor, or no listener
  std::shared_ptr<Listener> broken_listener_;  // until nothing of it runs any more
  Callers callers_;
  Guests guests_;
};

}  // namespace fab::tcp

#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>

#include "base/lifetime.h"
#include "base/network/ready_call.h"
#include "base/network/tcp_socket.h"
#include "fabric/admission/guests.h"
#include "fabric/completion/security_log.h"
#include "providers/verbs/exchange/exchange.h"

namespace fab::verbs {

// Where peers call an endpoint for an exchange. It holds callers until they have said their call; then they
// are told of (Exchange::Services::told) and are somebody else's. Who says nothing has to go at its deadline,
// or before if there are too many: a flood pushes out itself. Used under the context's lock.
class Door final {
 public:
  struct Services {
    const Exchange::Services& exchanges;
    SecurityLog& security;
    std::function<Bounds()> bounds;
    // The time, of Ticker::attended(), at which one who comes now has to have said its call. From then on
    // tick() is called from time to time.
    std::function<std::chrono::nanoseconds()> deadline;
  };
  // Listens; port 0 lets the system choose. Throws Error.
  Door(Services services, const SocketAddress& listen);

  const SocketAddress& listens_at() const noexcept FAB_LIFETIME_BOUND { return listens_at_; }
  // Looks after deadlines, and listens again where that had to end. Returns whether it has to be called
  // again.
  bool tick(std::chrono::nanoseconds now) noexcept;

 private:
  // One that has not said its call.
  struct Caller final : public Guest {
    Caller(Door& of, std::chrono::nanoseconds until) : door(of), given_up_at(until) {}
    std::uint64_t heard() const noexcept override { return exchange ? exchange->heard() : 0; }
    bool has_spoken() const noexcept override { return false; }
    Work work() noexcept override { return Work::none; }
    bool proven() noexcept override { return false; }
    int descriptor() const noexcept override { return exchange ? exchange->descriptor() : -1; }
    void evict(const char* why) noexcept override { door.drop(*this, SecurityEvent::caller_dropped, why); }

    Door& door;
    const std::chrono::nanoseconds given_up_at;
    std::unique_ptr<Exchange> exchange;
  };

  void accept() noexcept;
  void greet(OwnFd socket, const SocketAddress& from) noexcept;
  void on_greeted(Exchange& exchange, bool called) noexcept;
  void drop(const Caller& caller, SecurityEvent event, const char* why) noexcept;
  std::unique_ptr<Exchange> take(const Caller& caller) noexcept;
  void pause(bool on) noexcept;

  const Services services_;
  const OwnFd listener_;
  const SocketAddress listens_at_;
  bool paused_ = false;
  std::list<Caller> callers_;  // the oldest first
  Guests places_;              // of the same
  ReadyCall on_call_;
};

}  // namespace fab::verbs

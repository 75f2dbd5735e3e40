#include "providers/verbs/exchange/door.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "fabric/types/error.h"

namespace fab::verbs {
namespace {

// So few that earlier callers are heard before many new ones push them out.
constexpr int kCallersAtOnce = 16;

OwnFd listen_for_exchanges(const SocketAddress& address) try {
  return listen_tcp(address);
} catch (const std::system_error& error) {
  const std::string what =
      "verbs cannot listen on " + address.text() + " for exchanges: " + error.code().message();
  switch (error.code().value()) {
    case EADDRINUSE:
      throw Error(Errc::address_in_use, what + "; choose another port in verbs_listen, or none");
    case EACCES:
      throw Error(Errc::access, what + "; choose a port from 1024 on");
    default:
      throw Error(shortage_or(error, Errc::invalid),
                  what + "; verbs_listen takes an address of this machine");
  }
}

// The address with the port that the system has chosen.
SocketAddress heard_at(const OwnFd& listener, const SocketAddress& asked) {
  const SocketAddress found = local_address(listener.get());
  if (found.port() == 0)
    throw Error(shortage_or(errno, Errc::io), "the port on which " + asked.text() + " listens is not told: " +
                                                  std::generic_category().message(errno));
  return found;
}

}  // namespace

Door::Door(Services services, const SocketAddress& listen)
    : services_(std::move(services)),
      listener_(listen_for_exchanges(listen)),
      listens_at_(heard_at(listener_, listen)),
      on_call_(services_.exchanges.poller, listener_.get(), [this] { accept(); }) {}

void Door::accept() noexcept {
  for (int i = 0; i < kCallersAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    OwnFd socket(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from), &length,
                           SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      greet(std::move(socket), {reinterpret_cast<const sockaddr*>(&from), length});
      continue;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    // Without a descriptor the waiting caller would wake the poller all the time; so would a listener that
    // somebody has shut down.
    if (!is_shortage(errno) || !places_.evict({}, "no descriptor is left for another call")) {
      services_.security.note(SecurityEvent::limit, "all addresses", "no descriptor is left for a call");
      return pause(true);
    }
  }
}

void Door::pause(bool on) noexcept {
  on_call_.pause(on);
  paused_ = on;
  if (on) services_.deadline();  // ticks go on
}

void Door::greet(OwnFd socket, const SocketAddress& from) noexcept try {
  Bounds bounds = services_.bounds();
  bounds.guests = bounds.callers;
  bounds.guests_of_one = bounds.callers_of_one;
  std::string source = source_of(from);
  if (!places_.make_room(source, false, bounds)) return;
  Caller& caller = callers_.emplace_back(*this, services_.deadline());
  try {
    caller.exchange =
        std::make_unique<Exchange>(services_.exchanges, std::move(socket), from,
                                   [this](Exchange& exchange, bool called) { on_greeted(exchange, called); });
    places_.add(caller, std::move(source));
  } catch (...) {
    callers_.pop_back();
    throw;
  }
} catch (const std::exception&) {
  return;  // no memory for one more: the caller finds its connection closed
}

std::unique_ptr<Exchange> Door::take(const Caller& caller) noexcept {
  const auto at = std::ranges::find(callers_, &caller, [](const Caller& each) { return &each; });
  std::unique_ptr<Exchange> exchange = std::move(at->exchange);
  places_.remove(*at);
  callers_.erase(at);
  return exchange;
}

void Door::drop(const Caller& caller, SecurityEvent event, const char* why) noexcept {
  services_.security.note(event, caller.source(), why);
  take(caller);
}

void Door::on_greeted(Exchange& exchange, bool called) noexcept {
  const auto at =
      std::ranges::find(callers_, &exchange, [](const Caller& caller) { return caller.exchange.get(); });
  if (!called && exchange.heard() != 0)
    return drop(*at, SecurityEvent::protocol, "what it said is no call for an exchange");
  std::unique_ptr<Exchange> caller = take(*at);
  if (called) caller.release()->tell_call();  // who is told owns it
}

bool Door::tick(std::chrono::nanoseconds now) noexcept {
  if (paused_) pause(false);
  while (!callers_.empty() && callers_.front().given_up_at <= now)
    drop(callers_.front(), SecurityEvent::handshake_late, "it has not said whom it calls");
  return !callers_.empty() || paused_;
}

}  // namespace fab::verbs

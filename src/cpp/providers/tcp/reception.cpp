#include "providers/tcp/reception.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iterator>
#include <system_error>
#include <utility>

#include "fabric/completion/security_log.h"
#include "providers/tcp/endpoint.h"

namespace fab::tcp {
namespace {

// So few that earlier callers are heard before many new ones push them out.
constexpr int kAcceptBudget = 16;

std::string reason_of(const std::system_error& error, const SocketAddress& address) {
  return "cannot listen on " + address.text() + ": " + error.code().message();
}

OwnFd listen_or_explain(const SocketAddress& address, const std::string& absent) try {
  return listen_tcp(address, absent);
} catch (const std::system_error& error) {
  const std::string what = reason_of(error, address);
  switch (error.code().value()) {
    case EADDRINUSE:
      throw Error(
          Errc::address_in_use,
          what + (address.port() != 0
                      ? "; close what listens there, choose another port, or none to let the system choose"
                      : "; no port is free there: wait for connections that have ended, or widen "
                        "net.ipv4.ip_local_port_range"));
    case EACCES:
      throw Error(Errc::access, what + "; choose a port from 1024 on");
    case EADDRNOTAVAIL:
      throw Error(Errc::invalid, what + "; tcp_listen takes an address of this machine");
    default:
      throw Error(shortage_or(error, Errc::invalid), what);
  }
}

// The address with the port that the system has chosen. Without it nobody could call.
SocketAddress address_of(const OwnFd& listener, const SocketAddress& asked) {
  const SocketAddress found = local_address(listener.get());
  if (found.port() == 0)
    throw Error(shortage_or(errno, Errc::io), "the port on which " + asked.text() + " listens is not told: " +
                                                  std::generic_category().message(errno));
  return found;
}

std::size_t most_descriptors() noexcept {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
}

}  // namespace

// --- callers

void Callers::add(Caller caller) {
  std::size_t& count = by_source_[caller.source];
  callers_.push_back(std::move(caller));
  ++count;
}

Caller Callers::take(std::list<Caller>::iterator at) noexcept {
  Caller caller = std::move(*at);
  callers_.erase(at);
  if (const auto count = by_source_.find(caller.source); --count->second == 0) by_source_.erase(count);
  return caller;
}

Caller Callers::remove(const PendingConnection& connection) noexcept {
  return take(std::ranges::find_if(
      callers_, [&](const Caller& caller) { return caller.connection.get() == &connection; }));
}

std::size_t Callers::of(const std::string& source) const noexcept {
  const auto found = by_source_.find(source);
  return found == by_source_.end() ? 0 : found->second;
}

Caller Callers::take_oldest(const std::string& source) noexcept {
  const auto silent = std::ranges::find_if(
      callers_, [&](const Caller& caller) { return caller.source == source && caller.connection->silent(); });
  return take(silent != callers_.end() ? silent : std::ranges::find(callers_, source, &Caller::source));
}

Caller Callers::take_one(int below) noexcept {
  const auto value_of = [&](const Caller& caller) {
    return std::pair(of(caller.source), caller.connection->silent());
  };
  auto best = callers_.end();
  for (auto at = callers_.begin(); at != callers_.end(); ++at)
    if (at->connection->socket() < below && (best == callers_.end() || value_of(*at) > value_of(*best)))
      best = at;
  return best == callers_.end() ? Caller{} : take(best);
}

Caller Callers::make_room(const std::string& source, const Bounds& bounds) noexcept {
  if (of(source) >= bounds.callers_of_one) return take_oldest(source);
  return callers_.size() < bounds.callers ? Caller{} : take_one();
}

void Callers::tick(std::chrono::nanoseconds now) noexcept {
  for (auto at = callers_.begin(); at != callers_.end();)
    (at++)->connection->tick(now);  // may leave callers_
}

// --- the door

Reception::Reception(TcpEndpoint& endpoint, const SocketAddress& listen, std::string absent)
    : endpoint_(endpoint),
      absent_(std::move(absent)),
      listener_(
          std::make_shared<Listener>(*this, endpoint.services().poller, listen_or_explain(listen, absent_))),
      listens_at_(address_of(listener_->socket, listen)) {}

Bounds Reception::bounds() const noexcept {
  return Bounds::of(most_descriptors(), !endpoint_.services().keys.front().secret.empty());
}

void Reception::accept() noexcept {
  const Bounds bounds = this->bounds();
  for (int i = 0; i < kAcceptBudget; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof from;
    OwnFd socket(::accept4(listener_->socket.get(), reinterpret_cast<sockaddr*>(&from), &length,
                           SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      greet(std::move(socket), {reinterpret_cast<const sockaddr*>(&from), length}, bounds);
    } else if (errno == EINVAL) {  // somebody has shut it down
      listener_->stop();
      broken_listener_ = std::move(listener_);
      return listen_again();
    } else if (!is_shortage(errno)) {
      return;
    } else if (!free_descriptor({.silent = true})) {  // a peer that gave way could not come back now
      return pause();
    }
  }
}

// The waiting caller would wake the poller all the time.
void Reception::pause() noexcept {
  endpoint_.domain().security.note(SecurityEvent::limit, "all addresses", "no descriptor is left for a call");
  listener_->on_call.pause(true);
  listening_ = false;
  endpoint_.watch();
}

void Reception::listen_again() noexcept {
  listening_ = true;
  if (listener_) return listener_->on_call.pause(false);
  try {
    listener_ =
        std::make_shared<Listener>(*this, endpoint_.services().poller, listen_tcp(listens_at_, absent_));
  } catch (const std::exception&) {  // somebody else has the port, or no descriptor is left: tried again
    listening_ = false;
    endpoint_.watch();
  }
}

void Reception::greet(OwnFd socket, const SocketAddress& from, const Bounds& bounds) noexcept try {
  const std::string source = source_of(from);
  tell_dropped(callers_.make_room(source, bounds), "too many handshakes are under way");
  socket = out_of_reserve(std::move(socket), bounds);
  tune_tcp(socket.get(), endpoint_.domain().options.peer_deadline);
  callers_.add(
      {source, std::make_unique<IncomingConnection>(
                   endpoint_.services().poller, endpoint_.identity(), std::move(socket),
                   endpoint_.handshake_until(), [this](PendingConnection& caller) { on_caller(caller); })});
  endpoint_.watch();
} catch (const std::exception&) {
  return;  // no memory for one more: the caller finds its connection closed
}

// The socket, with a descriptor below the reserve if another one there can be closed for that: the kernel
// gives the lowest free number.
OwnFd Reception::out_of_reserve(OwnFd socket, const Bounds& bounds) noexcept {
  if (socket.get() < bounds.reserve || !free_descriptor({.below = bounds.reserve})) return socket;
  OwnFd lower(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  return lower.valid() ? std::move(lower) : std::move(socket);
}

// Closes something for the sake of a caller that has proven nothing: another one, or a stream that is sought.
bool Reception::free_descriptor(const Guests::Sought& sought) noexcept {
  constexpr const char* kWhy = "descriptors are left to the program";
  const Caller dropped = callers_.take_one(sought.below);
  tell_dropped(dropped, kWhy);
  return dropped.connection || guests_.evict(sought, kWhy);
}

void Reception::on_caller(PendingConnection& told) noexcept {
  Caller caller = callers_.remove(told);
  SecurityLog& log = endpoint_.domain().security;
  if (!caller.connection->arrived()) {
    const Errc error = caller.connection->error();
    if (error == Errc::key_rejected)
      log.note(SecurityEvent::key_refused, caller.source,
               "it has not proven an authorization key of this side");
    else if (error == Errc::not_encrypted)
      log.note(SecurityEvent::key_refused, caller.source, "one side encrypts, and the other does not");
    else if (error == Errc::protocol)
      log.note(SecurityEvent::protocol, caller.source, "its handshake is none");
    else if (caller.connection->late())
      log.note(SecurityEvent::handshake_late, caller.source, "it has not finished its handshake");
  } else {
    endpoint_.admit(std::move(caller.connection));
  }
}

bool Reception::make_room(const IncomingConnection& caller, bool proven) noexcept try {
  const std::string source = source_of(peer_address(caller.socket()));
  if (guests_.make_room(source, proven, bounds())) return true;
  endpoint_.domain().security.note(SecurityEvent::limit, source,
                                   "too many streams, and all of them are used");
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

void Reception::tell_dropped(const Caller& caller, const char* why) const noexcept {
  if (caller.connection) endpoint_.domain().security.note(SecurityEvent::caller_dropped, caller.source, why);
}

bool Reception::tick(std::chrono::nanoseconds now) noexcept {
  if (!listening_) listen_again();
  callers_.tick(now);
  return callers_.size() != 0 || !listening_;
}

}  // namespace fab::tcp

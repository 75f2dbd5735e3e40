#include "providers/tcp/connection.h"

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace fab::tcp {

PendingConnection::PendingConnection(Poller& poller, const Identity& self, Attended deadline, Told told)
    : poller_(poller), self_(self), deadline_(deadline), told_(std::move(told)), to_secure_(self.encrypts) {}

PendingConnection::~PendingConnection() { unwatch(); }

bool PendingConnection::watch(OwnFd socket, std::uint32_t events) noexcept try {
  unwatch();
  poller_.add(socket.get(), events, *this);
  socket_ = ByteStream(std::move(socket));
  return true;
} catch (const std::exception&) {
  return false;  // no memory, or the system's limit of watched descriptors
}

void PendingConnection::unwatch() noexcept {
  if (socket_.valid()) poller_.remove(socket_.get(), *this);
  socket_.reset();
}

void PendingConnection::pause() noexcept {
  if (socket_.valid()) poller_.remove(socket_.get(), *this);
}

ByteStream PendingConnection::take_stream() noexcept {
  pause();
  return std::move(socket_);
}

void PendingConnection::on_ready(std::uint32_t) noexcept {
  if (decided()) return;
  look();
  if (decided()) tell();
}

void PendingConnection::tick(Attended now) noexcept {
  if (!decided()) {
    if (now < deadline_) return;
    pollfd watched{socket_.get(), static_cast<short>(connected_ ? POLLIN : POLLOUT), 0};
    if (::poll(&watched, 1, 0) > 0) look();
    late_ = !decided();
    if (late_) fail(Errc::unreachable);
  }
  tell();
}

void PendingConnection::look() noexcept try {
  if (!connected_)
    on_connected();
  else if (!to_secure_ || secure())
    read();
} catch (const std::exception&) {
  fail(Errc::no_memory);
}

// Nothing may follow a call of this: the owner may have destroyed the object.
void PendingConnection::tell() noexcept {
  if (const Told told = std::exchange(told_, nullptr)) told(*this);
}

// Whether the other side answers, or calls, without encryption. Its first byte says so.
bool PendingConnection::hears_plain() noexcept {
  char first = 0;
  return ::recv(socket_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && begins_hello({&first, 1});
}

// Goes on with TLS. True when it is done, or when the other side has none: then no more than the messages of
// a refusal go over the plain stream, because the handshake takes no other.
bool PendingConnection::secure() {
  if (silent_ && hears_plain()) {
    to_secure_ = false;
    socket_.leave();
    return true;
  }
  if (!socket_.secure()) socket_.enter(begin_tls());
  Tls& tls = socket_.secure()->tls();
  const Tls::Step step = tls.handshake();
  silent_ = silent_ && !tls.heard();
  switch (step) {
    case Tls::Step::again:
      return false;
    case Tls::Step::done:
      to_secure_ = false;
      on_secured(tls.binding());
      return true;
    case Tls::Step::gone:
      fail(Errc::unreachable);
      return false;
    case Tls::Step::key_rejected:
      fail(Errc::key_rejected);
      return false;
    case Tls::Step::no_memory:
      fail(Errc::no_memory);
      return false;
    case Tls::Step::nonsense:
      break;
  }
  fail(Errc::protocol);
  return false;
}

void PendingConnection::read() {
  while (!decided()) {
    const auto missing = missing_of_message(buffer_);
    if (!missing) return fail(Errc::protocol);
    if (*missing == 0) {
      take(std::exchange(buffer_, {}));
      continue;
    }
    char bytes[kHelloHeader + kMaxHelloBody];
    iovec room{bytes, *missing};
    msghdr into{};
    into.msg_iov = &room;
    into.msg_iovlen = 1;
    const auto got = socket_.receive(into);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return fail(got < 0 && errno == EBADMSG ? Errc::protocol : Errc::unreachable);
    buffer_.append(bytes, static_cast<std::size_t>(got));
  }
}

void PendingConnection::take(const std::string& message) {
  silent_ = false;
  const Handshake::Step step = on_message(message);
  if (!step.answer.empty()) send(step.answer);
  if (step.error != Errc::ok) return fail(step.error);
  arrived_ = done() && error_ == Errc::ok;
}

// The messages are few and short, so they always fit into the socket.
void PendingConnection::send(const std::string& message) noexcept {
  iovec bytes{const_cast<char*>(message.data()), message.size()};
  msghdr from{};
  from.msg_iov = &bytes;
  from.msg_iovlen = 1;
  const auto sent = socket_.send(from);
  if (!std::cmp_equal(sent, message.size()) || socket_.unsent()) fail(Errc::unreachable);
}

void PendingConnection::fail(Errc error) noexcept {
  arrived_ = false;
  if (error_ == Errc::ok) error_ = error;
}

OutgoingConnection::OutgoingConnection(Poller& poller, const Identity& self, Call call, Attended deadline,
                                       Told told)
    : PendingConnection(poller, self, deadline, std::move(told)),
      handshake_(self, call.auth_index, call.peer, call.stream),
      addresses_(std::move(call.addresses)) {}

bool OutgoingConnection::start() noexcept {
  Errc reason = Errc::unreachable;
  while (next_ < addresses_.size()) {
    OwnFd socket = connect_tcp(addresses_[next_++]);
    if (!socket.valid())
      reason = shortage_or(errno, reason);
    else if (watch(std::move(socket), EPOLLOUT))
      return true;
    else
      reason = Errc::no_memory;
  }
  fail(reason);
  return false;
}

void OutgoingConnection::on_connected() {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    start();
    return;
  }
  connected_ = true;
  poller_.modify(socket_.get(), EPOLLIN, *this);
  handshake_.connected_to(addresses_[next_ - 1]);
  if (!self_.encrypts)
    send(handshake_.hello());
  else if (secure())
    read();
}

void OutgoingConnection::on_secured(const std::array<std::uint8_t, 32>& binding) {
  handshake_.encrypted(binding);
  send(handshake_.hello());
}

IncomingConnection::IncomingConnection(Poller& poller, const Identity& self, OwnFd socket, Attended deadline,
                                       Told told)
    : PendingConnection(poller, self, deadline, std::move(told)),
      handshake_(self, place_of(local_address(socket.get()))) {
  connected_ = true;
  if (!watch(std::move(socket), EPOLLIN)) fail(Errc::no_memory);
}

std::unique_ptr<Tls> IncomingConnection::begin_tls() {
  std::vector<std::string> secrets;
  for (const AuthKey& key : *self_.keys)
    for (std::size_t i = 0; i < key.secrets(); ++i) secrets.push_back(key.secret_at(i));
  return Tls::answer(socket_.get(), std::move(secrets), records());
}

bool IncomingConnection::welcome(std::uint64_t stream) noexcept try {
  send(handshake_.welcome(stream));
  return error() == Errc::ok;
} catch (const std::exception&) {
  fail(Errc::no_memory);
  return false;
}

}  // namespace fab::tcp

#include "providers/tcp/handshake.h"

#include <poll.h>
#include <sys/epoll.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/bytes/random.h"

namespace fab::tcp {

Handshake::Handshake(Poller& poller, const Identity& self, Attended deadline, Told told)
    : poller_(poller), self_(self), deadline_(deadline), told_(std::move(told)) {}

Handshake::~Handshake() { unwatch(); }

bool Handshake::watch(OwnFd socket, std::uint32_t events) noexcept try {
  unwatch();
  poller_.add(socket.get(), events, *this);
  socket_ = std::move(socket);
  return true;
} catch (const std::exception&) {
  return false;  // no memory, or the system's limit of watched descriptors
}

void Handshake::unwatch() noexcept {
  if (socket_.valid()) poller_.remove(socket_.get(), *this);
  socket_.reset();
}

void Handshake::rest() noexcept {
  if (socket_.valid()) poller_.remove(socket_.get(), *this);
}

OwnFd Handshake::take_socket() noexcept {
  rest();
  return std::move(socket_);
}

void Handshake::on_ready(std::uint32_t) noexcept {
  if (decided()) return;
  look();
  if (decided()) tell();
}

void Handshake::tick(Attended now) noexcept {
  if (!decided()) {
    if (now < deadline_) return;
    pollfd watched{socket_.get(), static_cast<short>(connected_ ? POLLIN : POLLOUT), 0};
    if (::poll(&watched, 1, 0) > 0) look();
    if (!decided()) fail(Errc::unreachable);
  }
  tell();
}

void Handshake::look() noexcept try {
  if (!connected_)
    on_connected();
  else
    read();
} catch (const std::exception&) {
  fail(Errc::no_memory);
}

// The last thing that is done here: the owner may destroy this object.
void Handshake::tell() noexcept {
  if (const Told told = std::exchange(told_, nullptr)) told(*this);
}

void Handshake::read() {
  while (!arrived_ && error_ == Errc::ok) {
    std::size_t size = kHelloHeader;
    if (buffer_.size() >= kHelloHeader) {
      const auto header = HelloHeader::parse(std::string_view(buffer_).substr(0, kHelloHeader));
      if (!header) return fail(Errc::protocol);
      size += header->length;
      if (buffer_.size() == size) {
        const std::string message = std::exchange(buffer_, {});
        on_message(header->type, std::string_view(message).substr(kHelloHeader));
        continue;
      }
    }
    char bytes[kHelloHeader + kMaxHelloBody];
    const auto got = ::recv(socket_.get(), bytes, size - buffer_.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return fail(Errc::unreachable);
    buffer_.append(bytes, static_cast<std::size_t>(got));
  }
}

// The messages are few and short, so they always fit into the socket.
void Handshake::send(const std::string& message) noexcept {
  const auto sent = ::send(socket_.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (!std::cmp_equal(sent, message.size())) fail(Errc::unreachable);
}

void Handshake::arrive() noexcept { arrived_ = true; }

void Handshake::fail(Errc error) noexcept {
  arrived_ = false;
  if (error_ == Errc::ok) error_ = error;
}

OutgoingHandshake::OutgoingHandshake(Poller& poller, const Identity& self, std::size_t key,
                                     const Whereabouts& peer, std::vector<SocketAddress> addresses,
                                     std::uint64_t stream, Attended deadline, Told told)
    : Handshake(poller, self, deadline, std::move(told)),
      secret_((*self.keys)[key].secret),
      addresses_(std::move(addresses)) {
  hello_.from = self.id;
  hello_.to = peer.id;
  hello_.stream = stream;
  hello_.keyed = !secret_.empty();
  hello_.part = self.part;
  fill_random(hello_.nonce.data(), hello_.nonce.size());
}

bool OutgoingHandshake::start() noexcept {
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

void OutgoingHandshake::on_connected() {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    start();
    return;
  }
  connected_ = true;
  poller_.modify(socket_.get(), EPOLLIN, *this);
  send(hello_.encode());
}

void OutgoingHandshake::on_message(HelloType type, std::string_view body) {
  if (type == HelloType::refuse) return fail(parse_refuse(body).value_or(Errc::protocol));
  if (type == HelloType::challenge) {
    const auto challenge = parse_challenge(body);
    if (!challenge || challenge_) return fail(Errc::protocol);
    if (!hello_.keyed) return fail(Errc::key_rejected);
    challenge_ = challenge;
    return send(encode_proof(proof_of(Role::initiator, secret_, hello_, *challenge_, 0, hello_.to)));
  }
  // A port that is free again may be given to this very call, which then hears itself (simultaneous open, RFC
  // 9293).
  if (type == HelloType::hello) return fail(Errc::unreachable);
  const auto welcome = type == HelloType::welcome ? Welcome::parse(body) : std::nullopt;
  if (!welcome || (hello_.to != kAnybody && hello_.to != welcome->id)) return fail(Errc::protocol);
  if (hello_.keyed &&
      (!challenge_ || !same(welcome->proof, proof_of(Role::acceptor, secret_, hello_, *challenge_,
                                                     welcome->stream, welcome->id))))
    return fail(Errc::key_rejected);
  peer_stream_ = welcome->stream;
  arrive();
}

IncomingHandshake::IncomingHandshake(Poller& poller, const Identity& self, OwnFd socket, Attended deadline,
                                     Told told)
    : Handshake(poller, self, deadline, std::move(told)) {
  connected_ = true;
  if (!watch(std::move(socket), EPOLLIN)) fail(Errc::no_memory);
}

void IncomingHandshake::on_message(HelloType type, std::string_view body) {
  const bool greeted = peer_stream_ != 0;
  if (!greeted && type == HelloType::hello) return on_hello(body);
  if (!greeted || type != HelloType::proof) return fail(Errc::protocol);
  const auto proof = parse_proof(body);
  const auto key = proof ? proven_key(*self_.keys, *proof, hello_, challenge_, hello_.to) : std::nullopt;
  if (!key) return refuse(Errc::key_rejected);
  key_ = *key;
  arrive();
}

void IncomingHandshake::on_hello(std::string_view body) {
  auto hello = Hello::parse(body);
  if (!hello || hello->stream == 0) return fail(Errc::protocol);
  hello_ = std::move(*hello);
  peer_stream_ = hello_.stream;
  if (hello_.to != kAnybody && hello_.to != self_.id)
    return refuse(Errc::unreachable);  // meant for another process, which had this port before
  if (hello_.keyed == self_.keys->front().secret.empty()) return refuse(Errc::key_rejected);
  if (!hello_.keyed) return arrive();
  fill_random(challenge_.data(), challenge_.size());
  send(encode_challenge(challenge_));
}

void IncomingHandshake::refuse(Errc reason) {
  send(encode_refuse(reason));
  fail(reason);
}

bool IncomingHandshake::welcome(std::uint64_t stream) noexcept try {
  Welcome welcome{.stream = stream, .id = self_.id, .proof = {}};
  if (hello_.keyed)
    welcome.proof =
        proof_of(Role::acceptor, (*self_.keys)[key_].secret, hello_, challenge_, stream, self_.id);
  send(welcome.encode());
  return error_ == Errc::ok;
} catch (const std::exception&) {
  fail(Errc::no_memory);
  return false;
}

}  // namespace fab::tcp

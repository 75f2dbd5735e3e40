#include "providers/tcp/stream.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/bytes/random.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/admission/guest_session.h"
#include "fabric/completion/event_queue.h"
#include "fabric/completion/operation.h"
#include "fabric/completion/security_log.h"
#include "providers/tcp/endpoint.h"

namespace fab::tcp {
namespace {

constexpr std::size_t kPieces = 256;            // of one sendmsg or recvmsg
constexpr std::size_t kSendAtOnce = 64 * 1024;  // so many queued bytes are sent at once
constexpr std::uint64_t kShort = 4096;          // bytes; less than that is sent though the slice is spent

// Cuts the pieces to so many bytes: sets `count`, shortens the last piece, and returns the bytes.
std::size_t cut(std::span<iovec> pieces, std::uint64_t left, std::size_t& count) noexcept {
  std::size_t bytes = 0;
  for (count = 0; count < pieces.size() && bytes < left; ++count) {
    pieces[count].iov_len = std::min<std::size_t>(pieces[count].iov_len, left - bytes);
    bytes += pieces[count].iov_len;
  }
  return bytes;
}

}  // namespace

TcpStream::TcpStream(TcpEndpoint& endpoint, std::vector<Part> names, EndpointAddress where,
                     std::size_t auth_index)
    : endpoint_(&endpoint),
      where_(std::move(where)),
      auth_index_(auth_index),
      number_(nonzero_random_u64()),
      session_({.segment = endpoint.domain().segment,
                .completions = endpoint.services().completions,
                .receives = endpoint.services().receives,
                .sender = std::make_shared<Sender>(endpoint.services().peers, std::move(names),
                                                   endpoint.services().keys[auth_index],
                                                   &endpoint.services().links[endpoint.link()]),
                .context_slot = endpoint.services().context_slot,
                .counts = counts_,
                .wake_domain = endpoint.services().wake_domain,
                .table = &endpoint.domain().regions,
                .slice = &endpoint.services().slice,
                .on_more =
                    [this] {
                      if (endpoint_) endpoint_->receive_later(*this);
                    },
                .observer = endpoint.domain().observer,
                .on_output = [this] { on_output(); },
                .handover = Handover::when_answered,
                .extensions = endpoint.services().extensions,
                .on_cut = [this] { fail(Errc::peer_lost); }}) {}

TcpStream::~TcpStream() { disconnect(); }

std::string TcpStream::remote() const {
  if (open()) return peer_address(socket_.get()).text();
  return where_.addresses.front().text();
}

void TcpStream::connect(std::vector<SocketAddress> routes) noexcept try {
  attempt_ = std::make_unique<OutgoingConnection>(
      endpoint_->services().poller, endpoint_->identity(),
      OutgoingConnection::Call{auth_index_, where_, std::move(routes), number_}, endpoint_->handshake_until(),
      [this](PendingConnection& attempt) { on_attempt(attempt); });
  endpoint_->watch();
  if (!attempt_->start()) attempt_failed(attempt_->error());
} catch (const std::exception&) {
  fail(Errc::no_memory);
}

void TcpStream::on_attempt(PendingConnection& attempt) noexcept {
  if (attempt_->other_versions())
    endpoint_->on_other_versions(where_, auth_index_, *attempt_->other_versions());
  if (!attempt.arrived()) return attempt_failed(attempt.error());
  if (where_.id == kAnybody && attempt_->peer_key() != kNoPublicKey)
    endpoint_->on_found(*this, attempt_->peer_id());
  called_ = true;
  session_.sender().proven_with(attempt_->secret());
  if (session_.sender().key_removed()) return attempt_failed(Errc::key_rejected);
  adopt(attempt.take_stream(), attempt_->peer_stream(), attempt_->peer_key());
}

void TcpStream::attempt_failed(Errc error) noexcept {
  attempt_.reset();
  if (error == Errc::protocol) note(SecurityEvent::protocol, "what answered a call is no handshake");
  if (deferred_) {
    endpoint_->admit(std::move(deferred_));
    error = Errc::no_memory;  // told only if that opened no connection
  }
  if (!open()) fail(error);
}

void TcpStream::defer(std::unique_ptr<IncomingConnection> caller) noexcept {
  deferred_ = std::move(caller);
  deferred_->pause();
}

void TcpStream::end_calls() noexcept {
  attempt_.reset();
  deferred_.reset();
}

void TcpStream::adopt(ByteStream socket, std::uint64_t peer_number, const PublicKey& peer_key) noexcept {
  session_.sender().proven_by(peer_key);
  end_calls();
  peer_number_ = peer_number;
  tune_tcp(socket.get(), endpoint_->domain().options.peer_deadline);
  try {
    if (!called_) endpoint_->guests().add(*this, source_of(peer_address(socket.get())));
    endpoint_->services().poller.add(socket.get(), EPOLLIN, *this);
  } catch (const std::exception&) {
    return fail(Errc::no_memory);  // or the system's limit of watched descriptors
  }
  socket_ = std::move(socket);
  if (socket_.may_hold_more()) endpoint_->receive_later(*this);
  endpoint_->poll_directly(*this);
  send();
}

std::size_t TcpStream::post(std::span<const Transfer> batch) noexcept {
  if (state_ != Errc::ok) {
    for (const Transfer& transfer : batch) transfer.operation->settle(state_, 0);
    counts_.refuse(batch);
    return batch.size();
  }
  const bool alone = session_.requests().outstanding() == 0;
  const std::size_t posted = session_.post(batch);
  end_if_broken();
  if (posted == 0 || state_ != Errc::ok) return posted;
  endpoint_->watch();
  endpoint_->poll_directly(*this);
  if (open() && !write_blocked_) {
    // While something is under way, its answer brings the next turn. What gathers until then shares a system
    // call.
    if (alone || session_.queued() >= kSendAtOnce)
      send();
    else
      endpoint_->send_later(*this);
  }
  return posted;
}

bool TcpStream::flush() noexcept {
  Slice* const slice = endpoint_ ? &endpoint_->services().slice : nullptr;
  std::size_t sent = 0;
  std::size_t most = kPieces;
  session_.end_turn();  // queues acks that waited for another frame
  bool last = false;
  while (open() && !send_ended_ && !last) {
    iovec pieces[kPieces];
    last = slice->spent();
    if (last && socket_.unsent()) break;
    const std::uint64_t left = last ? kShort : slice->left_of_stream();
    msghdr message{};
    message.msg_iov = pieces;
    const std::size_t offered =
        cut(std::span(pieces, session_.output(pieces, most)), left, message.msg_iovlen);
    if (message.msg_iovlen == 0 && !socket_.unsent()) break;
    if (last && (offered == kShort || !slice->spend_tail(offered))) break;
    const auto taken = socket_.send(message);
    if (taken >= 0) {
      session_.sent(static_cast<std::size_t>(taken));
      sent += static_cast<std::size_t>(taken);
      sent_ += static_cast<std::size_t>(taken);
      if (std::cmp_less(taken, offered)) break;
    } else if (errno == EFAULT && most > 1) {
      most = 1;  // to learn whose memory is missing
    } else if (errno == EAGAIN || errno == ENOBUFS) {
      break;
    } else if (errno == EINTR || (errno == EFAULT && session_.output_fault())) {
      continue;
    } else {
      send_ended_ = true;  // receive() reads what came before the end, and then finds the end
      starved_ = errno == ENOMEM && socket_.secure();  // or there is no end to find
    }
  }
  wait_writable(has_output() && !send_ended_);
  if (broken() && endpoint_) endpoint_->send_later(*this);
  return sent != 0;
}

bool TcpStream::send() noexcept {
  const bool sent = flush();
  end_if_broken();
  return sent;
}

void TcpStream::end_if_broken() noexcept {
  if (broken()) fail(Errc::no_memory);
}

void TcpStream::wait_writable(bool on) noexcept {
  if (on == write_blocked_ || !open()) return;
  write_blocked_ = on;
  if (on) endpoint_->watch();
  endpoint_->services().poller.modify(socket_.get(), on ? EPOLLIN | EPOLLOUT : EPOLLIN, *this);
}

// A message was received or discarded by the user, and the peer has to be told. Outside of receive(), nothing
// else sends that.
void TcpStream::on_output() noexcept {
  if (!endpoint_) return;
  endpoint_->watch();
  if (broken())
    endpoint_->send_later(*this);
  else if (!receiving_ && open() && !write_blocked_)
    flush();
}

bool TcpStream::receive() noexcept {
  if (!open()) return false;
  receiving_ = true;
  session_.go_on();
  const bool any = take_in();
  receiving_ = false;
  if (open() && !write_blocked_ && has_output()) flush();
  end_if_broken();
  return any;
}

bool TcpStream::take_in() noexcept {
  bool any = false;
  std::size_t most = kPieces;
  const Slice& slice = endpoint_->services().slice;
  while (!slice.spent()) {
    iovec pieces[kPieces];
    msghdr message{};
    message.msg_iov = pieces;
    const std::size_t offered =
        cut(std::span(pieces, session_.input(pieces, most)), slice.left_of_stream(), message.msg_iovlen);
    const auto got = socket_.receive(message);
    if (got < 0) {
      if (errno == EFAULT && most > 2) {
        most = 2;  // to learn whose memory is missing
        continue;
      }
      if (errno == EINTR || (errno == EFAULT && session_.incoming().fault())) continue;
      if (errno == EAGAIN) break;
    }
    if (got <= 0) {
      if (got < 0 && errno == EBADMSG) note(SecurityEvent::protocol, "its stream was changed on the way");
      fail(Errc::peer_lost);
      return true;
    }
    any = true;
    received_ += static_cast<std::size_t>(got);
    if (const Errc error = session_.received(static_cast<std::size_t>(got)); error != Errc::ok) {
      if (error == Errc::protocol) note(SecurityEvent::protocol, "what came on its stream is no frame");
      if (error == Errc::no_memory) note(SecurityEvent::limit, "memory for what came on its stream");
      fail(error);
      return true;
    }
    if (std::cmp_less(got, offered) && !socket_.ended() && !socket_.sealed_by_kernel()) break;
  }
  if ((socket_.may_hold_more() && slice.spent()) || socket_.holds_more()) endpoint_->receive_later(*this);
  if (!any) return false;
  endpoint_->poll_directly(*this);
  if (session_.incoming().unfinished()) endpoint_->watch();
  // Whoever receives a message often answers with another one, which takes the ack along, or receives more.
  // So acks wait for a turn in which nothing comes. Under manual progress such a turn may never come.
  const bool may_wait = !endpoint_->domain().options.manual_progress;
  if (session_.end_turn(may_wait)) endpoint_->send_when_idle(*this);
  return true;
}

void TcpStream::on_ready(std::uint32_t events) noexcept {
  if (events & ~static_cast<std::uint32_t>(EPOLLOUT)) receive();
  if (open() && (events & EPOLLOUT)) send();
}

void TcpStream::forget(std::uint32_t region) noexcept {
  session_.forget(region);
  if (broken() || (open() && !write_blocked_ && session_.has_output())) endpoint_->send_later(*this);
}

bool TcpStream::tick() noexcept {
  const auto now = endpoint_->attended();
  if (attempt_) {
    attempt_->tick(now);
    return state_ == Errc::ok;
  }
  if (!open()) return connecting();
  if (half_frame_stays()) return false;
  if (!open()) return false;
  pace_.look(peer_works(session_), received_ + sent_, now, Liveness::handshake_time(endpoint_->deadlines()));
  const bool owes = session_.awaits_peer();
  const auto patience = Liveness::patience(endpoint_->deadlines(), session_.one_of_several());
  switch (liveness_.look(owes, owes ? signs_of_life() : received_, now, patience)) {
    case Liveness::Verdict::lost:
      if (!receive()) fail(Errc::peer_lost);
      break;
    case Liveness::Verdict::ask:
      unanswered_.asked(socket_.handed(), !has_output());
      session_.ping();
      if (!write_blocked_) send();
      break;
    case Liveness::Verdict::well:
      break;
  }
  return (owes || peer_works(session_)) && state_ == Errc::ok;
}

// A number that changes while bytes come from the peer, or what it has to read before it can answer gets
// there. Beside other links to the peer, this one is better given up than waited for.
std::uint64_t TcpStream::signs_of_life() noexcept {
  if (session_.one_of_several()) return received_;
  return received_ + unanswered_.look({.handed = socket_.handed(),
                                       .waiting = unacknowledged_bytes(socket_.get()),
                                       .all_handed = !has_output(),
                                       .received = received_});
}

// Whoever begins a frame and does not go on would hold this stream for ever. Ends it at the deadline.
bool TcpStream::half_frame_stays() noexcept {
  const auto deadlines = endpoint_->deadlines();
  const auto verdict = completes_frames_.look(session_.incoming().unfinished(), received_,
                                              endpoint_->attended(), Liveness::patience(deadlines, false));
  if (verdict != Liveness::Verdict::lost || receive()) return false;
  if (state_ == Errc::ok) {
    note(SecurityEvent::half_frame, "it began a frame, and did not go on");
    fail(Errc::peer_lost);
  }
  return true;
}

// A stream that this side uses for a peer that it knows stays: it may not be able to call that peer.
Guest::Work TcpStream::work() noexcept {
  const bool used = counts_.posted != 0 && session_.sender().handle() != kNoPeer;
  return used ? Work::moving : work_of(session_, pace_);
}

void TcpStream::evict(const char* why) noexcept {
  note(SecurityEvent::limit, why);
  fail(Errc::peer_lost);
}

void TcpStream::note(SecurityEvent event, const char* what) const noexcept try {
  endpoint_->domain().security.note(event, source().empty() ? where_.addresses.front().host() : source(),
                                    what);
} catch (const std::bad_alloc&) {
  return;
}

void TcpStream::disconnect() noexcept {
  end_calls();
  if (open() && endpoint_) endpoint_->services().poller.remove(socket_.get(), *this);
  socket_.reset();
  if (endpoint_) endpoint_->guests().remove(*this);
}

void TcpStream::fail(Errc error) noexcept {
  if (state_ != Errc::ok) return;
  TcpEndpoint& endpoint = *endpoint_;
  const PeerId peer = session_.sender().handle();
  const bool rail = session_.one_of_several(), stood = open();
  endpoint.retire(*this);
  endpoint.services().on_path_ended();
  detach(error);
  if (peer != kNoPeer && stood && !rail)  // of rails others tell, who know whether the peer is lost with it
    endpoint.services().events.tell_lost({.error = error, .peer = peer, .link = endpoint.link()});
}

bool TcpStream::lingers() noexcept {
  if (!open() || send_ended_) return false;
  flush();  // acks as well, without which the peer would take for lost what has been taken here
  const bool waits = session_.messages().owes() || socket_.sealed_by_kernel();
  return !send_ended_ && (has_output() || (waits && unacknowledged_bytes(socket_.get()) != 0));
}

void TcpStream::detach(Errc error) noexcept {
  if (state_ != Errc::ok) return;
  state_ = error;
  if (open() && unacknowledged_bytes(socket_.get()) != 0) discard_input(socket_.get());
  disconnect();
  endpoint_ = nullptr;
  session_.fail(error);
}

}  // namespace fab::tcp

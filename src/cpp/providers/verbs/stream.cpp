#include "providers/verbs/stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes/random.h"
#include "base/bytes/wire.h"
#include "base/memory/guarded_copy.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/admission/guest_session.h"
#include "fabric/completion/event_queue.h"
#include "providers/verbs/endpoint.h"
#include "providers/verbs/route.h"

namespace fab::verbs {
namespace {

// For how long a called side may be busy, in times of a handshake: a thousand callers take minutes where
// devices are emulated.
constexpr int kMostHandshakes = 120;
constexpr unsigned kMostSilentCalls = 3;  // connections of iWARP over which no answer came
// How much of a slice a handshake spends: its proofs take the processor as long as copying so many bytes.
constexpr std::uint64_t kCostOfHandshake = 64 * 1024;

}  // namespace

VerbsStream::VerbsStream(VerbsEndpoint& endpoint, Part peer, EndpointAddress where, std::size_t key,
                         Told told)
    : endpoint_(endpoint), told_(std::move(told)), caller_(true), where_(std::move(where)), key_(key) {
  make_session(std::move(peer));
}

VerbsStream::VerbsStream(VerbsEndpoint& endpoint, Told told)
    : endpoint_(endpoint), told_(std::move(told)), caller_(false), sign_sent_at_(endpoint.attended()) {}

VerbsStream::~VerbsStream() {
  connection_.reset();
  if (session_) session_->fail(Errc::peer_lost);
}

void VerbsStream::make_session(Part peer) {
  session_ = std::make_unique<Session>(Session::Services{
      .segment = endpoint_.shared().services.segment,
      .completions = endpoint_.services().completions,
      .receives = endpoint_.services().receives,
      .sender = std::make_shared<Sender>(endpoint_.services().peers, std::vector<Part>{std::move(peer)},
                                         endpoint_.services().keys[key_],
                                         &endpoint_.services().links[endpoint_.link()]),
      .context_slot = endpoint_.services().context_slot,
      .counts = counts_,
      .wake_domain = endpoint_.services().wake_domain,
      .table = &endpoint_.shared().services.regions,
      .slice = &endpoint_.services().slice,
      .on_more = [this] { endpoint_.turn_later(*this); },
      .observer = endpoint_.shared().services.observer,
      .on_output = [this] { on_output(); },
      .handover = Handover::when_answered,
      .device = &endpoint_.shared().regions,
      .extensions = endpoint_.services().extensions,
      .on_cut = [this] { fail(Errc::peer_lost); }});
}

// Receiving or discarding a message gives the session something to send. Inside on_completion() the end of
// the turn sends it; outside, nothing else would.
void VerbsStream::on_output() noexcept {
  endpoint_.watch();
  if (!receiving_) flush();
}

std::string VerbsStream::remote() const {
  return where_.addresses.empty() ? std::string() : where_.addresses.front().text();
}

// --- connecting

Errc VerbsStream::call() noexcept {
  given_up_at_ = endpoint_.attended() + kMostHandshakes * Liveness::handshake_time(endpoint_.deadlines());
  heard_in_handshake();
  endpoint_.watch();
  return dial();
}

void VerbsStream::make_connection() {
  connection_ = std::make_unique<Connection>(
      endpoint_.connections(), *this,
      Connection::Depth{kSlots, kSlots, 0, endpoint_.shared().stream_domain, endpoint_.shared_receives()});
}

Errc VerbsStream::dial() noexcept try {
  connection_.reset();
  mr_.reset();
  calling_.reset();
  free_slots_ = credits_ = kSlots;
  next_slot_ = owed_ = 0;
  make_connection();
  const auto route = route_to(where_, endpoint_.shared().ways());
  if (!route || !connection_->call(*route, {.to = where_.id})) return Errc::unreachable;
  called_at_ = route->to;
  return Errc::ok;
} catch (const std::exception&) {
  return Errc::no_memory;
}

Errc VerbsStream::answer(OwnId id, const rdma_conn_param& asked) noexcept try {
  given_up_at_ = endpoint_.attended() + 2 * Liveness::handshake_time(endpoint_.deadlines());
  heard_in_handshake();
  endpoint_.watch();
  const Exchange* const exchange = Exchange::of(*id);
  answering_.emplace(endpoint_.identity(), place_of(exchange ? exchange->called_at() : endpoint_.address()));
  make_connection();
  return connection_->answer(std::move(id), asked) ? Errc::ok : Errc::no_memory;
} catch (const std::exception&) {
  return Errc::no_memory;
}

bool VerbsStream::on_made() noexcept try {
  const bool shared = endpoint_.shared_receives() != nullptr;
  memory_ = Mapping::anonymous(std::size_t{shared ? 1u : 2u} * kSlots * kSlotBytes);
  mr_.reset(library().reg_mr(&endpoint_.shared().stream_domain, memory_.data(), memory_.size(),
                             IBV_ACCESS_LOCAL_WRITE));
  if (!mr_) return false;
  if (shared) return true;
  for (std::uint32_t slot = 0; slot < kSlots; ++slot)
    if (!post_receive(slot)) return false;
  return true;
} catch (const std::exception&) {
  return false;
}

void VerbsStream::on_connected() noexcept try {
  if (!caller_) return;
  heard_in_handshake();
  answer_until_ = endpoint_.attended() + kAnswerTime * (1u << silent_calls_);
  calling_.emplace(endpoint_.identity(), key_, where_, nonzero_random_u64());
  calling_->connected_to(called_at_);
  send_handshake(calling_->hello());
} catch (const std::exception&) {
  fail(Errc::no_memory);
}

void VerbsStream::on_closed(Errc why) noexcept {
  if (open_) return fail(Errc::peer_lost);
  if (caller_ && dial_later(why)) return;
  const bool refused = why == Errc::busy || why == Errc::again || why == Errc::closed;
  fail(refused ? Errc::unreachable : why);
}

// The peer is alive, so its time begins anew. `away`: it said that it will be busy until then.
void VerbsStream::heard_in_handshake(std::chrono::nanoseconds away) noexcept {
  const auto time = Liveness::handshake_time(endpoint_.deadlines());
  handshake_until_ = std::min(endpoint_.attended() + time + away, given_up_at_);
}

bool VerbsStream::dial_later(Errc why) noexcept {
  const auto wait = redials_.after(why, random_u64());
  if (!wait) return false;
  if (why == Errc::busy) heard_in_handshake(*wait);
  connection_.reset();
  redial_at_ = Deadline::in(*wait);
  endpoint_.later().redial(*this);
  return true;
}

void VerbsStream::redial() noexcept {
  redial_at_ = {};
  if (const Errc error = dial(); error != Errc::ok) on_closed(error);
}

void VerbsStream::send_handshake(const std::string& message) noexcept {
  if (free_slots_ == 0 || credits_ == 0 || message.size() > kSlotBytes - kHeader) return fail(Errc::protocol);
  std::memcpy(send_slot(next_slot_) + kHeader, message.data(), message.size());
  if (!post(next_slot_, Kind::handshake, message.size())) fail(Errc::peer_lost);
}

Errc VerbsStream::on_handshake(std::string_view message) {
  if (open_) return Errc::protocol;  // the message comes at the wrong time
  heard_in_handshake();
  answer_until_ = handshake_until_;
  endpoint_.services().slice.spend(kCostOfHandshake);
  if (answering_) {
    AcceptorHandshake& caller = *answering_;
    const Handshake::Step step = caller.receive(message);
    where_ = caller.hello().where;
    const Errc outcome = answer_handshake(step);
    if (outcome == Errc::ok && caller.done()) admit(caller);
    return outcome == Errc::ok ? state_ : outcome;
  }
  if (!calling_) return Errc::protocol;
  CallerHandshake& called = *calling_;
  const Handshake::Step step = called.receive(message);
  const Errc outcome = answer_handshake(step);
  if (outcome == Errc::ok && called.done()) {
    token_ = called.peer_stream();
    session_->sender().proven_with(called.secret());
    if (session_->sender().key_removed()) return Errc::key_rejected;
    session_->sender().proven_by(called.peer_key());
    become_open();
  }
  return outcome == Errc::ok ? state_ : outcome;
}

// Sends what one message of the handshake leads to. Returns ok, or why the stream has to end.
Errc VerbsStream::answer_handshake(const Handshake::Step& step) noexcept {
  if (!caller_ && step.error == Errc::key_rejected)
    endpoint_.note(SecurityEvent::key_refused, *this, "it has not proven an authorization key of this side");
  if (!step.answer.empty()) send_handshake(step.answer);
  // The side that is refused ends the stream. Ending it here would lose the refusal, because a device drops
  // with the queue pair what has not left yet.
  if (step.error != Errc::ok && step.answer.empty()) return step.error;
  return state_;
}

void VerbsStream::admit(const AcceptorHandshake& caller) {
  key_ = caller.auth_index();
  token_ = nonzero_random_u64();
  const Part& part = caller.hello().part;
  if (proven()) endpoint_.supersede(*this);
  make_session(proven() ? part : Part{part.link, 0, {}});  // a name only for who has proven it
  session_->sender().proven_with(caller.secret());
  session_->sender().proven_by(caller.peer_key());
  send_handshake(caller.welcome(token_));
  if (state_ == Errc::ok) become_open();
}

void VerbsStream::become_open() noexcept {
  open_ = true;
  endpoint_.turn_later(*this);
  told_.on_open();
}

// --- slots

bool VerbsStream::post_receive(std::uint32_t slot) noexcept {
  ibv_sge where{.addr = reinterpret_cast<std::uint64_t>(receive_slot(slot)),
                .length = static_cast<std::uint32_t>(kSlotBytes),
                .lkey = mr_->lkey};
  ibv_recv_wr request{};
  request.wr_id = connection_->work_id(slot, true);
  request.sg_list = &where;
  request.num_sge = 1;
  ibv_recv_wr* bad;
  return ibv_post_recv(connection_->queue_pair(), &request, &bad) == 0;
}

bool VerbsStream::post(std::uint32_t slot, Kind kind, std::size_t bytes) noexcept {
  std::byte* const at = send_slot(slot);
  const std::uint32_t emptied = to_little(std::exchange(owed_, 0));
  std::memset(at, 0, kHeader);
  std::memcpy(at, &emptied, sizeof emptied);
  at[4] = static_cast<std::byte>(kind);
  ibv_sge where{.addr = reinterpret_cast<std::uint64_t>(at),
                .length = static_cast<std::uint32_t>(kHeader + bytes),
                .lkey = mr_->lkey};
  ibv_send_wr request{};
  request.wr_id = connection_->work_id(slot, false);
  request.sg_list = &where;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad;
  if (ibv_post_send(connection_->queue_pair(), &request, &bad) != 0) return false;
  next_slot_ = (slot + 1) % kSlots;
  --free_slots_;
  --credits_;
  return true;
}

// Fills a slot with what the session has to send next. Returns the number of bytes: 0 if there is nothing, or
// if broken_ says that the stream must end.
std::size_t VerbsStream::fill(std::byte* to) noexcept {
  constexpr std::size_t kPieces = 64;
  std::size_t filled = 0;
  while (filled < kSlotBytes - kHeader) {
    iovec pieces[kPieces];
    const std::size_t count = session_->output(pieces, kPieces);
    if (count == 0) break;
    std::size_t done = 0;
    for (std::size_t i = 0; i < count && filled + done < kSlotBytes - kHeader; ++i) {
      const std::size_t part = std::min(pieces[i].iov_len, kSlotBytes - kHeader - filled - done);
      if (!copy_guarded(to + filled + done, pieces[i].iov_base, part)) {
        // output_fault() is about the first piece, so a fault in a later one is met again as the first.
        if (i == 0 && done == 0 && !session_->output_fault()) broken_ = Errc::protocol;
        break;
      }
      done += part;
      if (part < pieces[i].iov_len) break;
    }
    if (done) session_->sent(done);
    filled += done;
    moved_ += done;
    if (broken_ != Errc::ok) break;
  }
  return filled;
}

// Never ends the stream, because it is called from many places. It leaves an error in broken_ for end_turn().
bool VerbsStream::flush() noexcept {
  if (!open_ || state_ != Errc::ok || broken_ != Errc::ok) return false;
  bool sent = false;
  // The last credit is kept for a message that gives back credits.
  while (broken_ == Errc::ok && free_slots_ > 0 && credits_ > 1 && session_->has_output()) {
    const std::uint32_t slot = next_slot_;
    const std::size_t bytes = fill(send_slot(slot) + kHeader);
    if (bytes == 0) break;
    if (!post(slot, Kind::frames, bytes)) broken_ = Errc::peer_lost;
    sent = true;
  }
  if (session_->broken()) broken_ = Errc::no_memory;
  if (broken_ == Errc::ok && owed_ >= kSlots / 2) send_credits();
  if (broken_ != Errc::ok) {
    endpoint_.turn_later(*this);
    endpoint_.watch();
  }
  return sent;
}

// A message without frames gives back the credits of emptied slots.
void VerbsStream::send_credits() noexcept {
  if (free_slots_ > 0 && credits_ > 0 && !post(next_slot_, Kind::frames, 0)) broken_ = Errc::peer_lost;
}

void VerbsStream::posted(bool alone) noexcept {
  endpoint_.watch();
  // If requests are under way, an answer to them leads to the next turn, and what is posted until then shares
  // a message.
  if (alone)
    flush();
  else
    endpoint_.turn_later(*this);
}

void VerbsStream::on_completion(const ibv_wc& completion) noexcept {
  if (state_ != Errc::ok) return;
  if (completion.status != IBV_WC_SUCCESS) return on_closed(Errc::unreachable);
  if (!Connection::is_receive(completion)) {
    ++free_slots_;
    if (session_ && (session_->has_output() || owed_ >= kSlots / 2)) endpoint_.turn_later(*this);
    return;
  }
  const std::uint32_t slot = Connection::number_of(completion);
  const SharedReceives* const shared = endpoint_.shared_receives();
  ++received_;
  receiving_ = true;
  const Errc error = on_message(shared ? shared->slot(slot) : receive_slot(slot), completion.byte_len);
  receiving_ = false;
  if (error == Errc::protocol)
    endpoint_.note(SecurityEvent::protocol, *this, "what came on its stream is no frame and no handshake");
  if (error != Errc::ok) return fail(error);
  if (state_ != Errc::ok) return;
  ++owed_;
  if (!shared && !post_receive(slot)) return fail(Errc::peer_lost);
  endpoint_.turn_later(*this);
}

Errc VerbsStream::on_message(const std::byte* bytes, std::size_t length) noexcept {
  if (length < kHeader || length > kSlotBytes) return Errc::protocol;
  std::uint32_t emptied;
  std::memcpy(&emptied, bytes, sizeof emptied);
  emptied = to_little(emptied);
  if (emptied > kSlots - credits_) return Errc::protocol;
  credits_ += emptied;
  const auto kind = static_cast<Kind>(bytes[4]);
  bytes += kHeader;
  length -= kHeader;
  if (kind == Kind::frames) return open_ ? take(bytes, length) : length ? Errc::protocol : Errc::ok;
  if (kind != Kind::handshake) return Errc::protocol;
  try {
    return on_handshake({reinterpret_cast<const char*>(bytes), length});
  } catch (const std::exception&) {
    return Errc::no_memory;
  }
}

Errc VerbsStream::take(const std::byte* bytes, std::size_t length) noexcept {
  moved_ += length;
  while (length) {
    iovec places[2];
    const std::size_t count = session_->input(places);
    std::size_t got = 0;
    bool there = true;
    for (std::size_t i = 0; i < count && got < length && there; ++i) {
      const std::size_t part = std::min(places[i].iov_len, length - got);
      there = copy_guarded(places[i].iov_base, bytes + got, part);
      if (there) got += part;
    }
    if (!there && got == 0) {
      if (!session_->incoming().fault()) return Errc::protocol;
      continue;
    }
    bytes += got;
    length -= got;
    if (const Errc error = session_->received(got); error != Errc::ok) return error;
    if (state_ != Errc::ok) return state_;
  }
  return Errc::ok;
}

void VerbsStream::end_turn() noexcept {
  if (!open_ || state_ != Errc::ok) return;
  session_->go_on();
  session_->end_turn();
  flush();
  if (broken_ != Errc::ok) return fail(broken_);
  told_.on_turn();
}

void VerbsStream::forget(std::uint32_t region) noexcept {
  if (!session_) return;
  session_->forget(region);
  if (session_->has_output() || session_->broken()) endpoint_.turn_later(*this);
}

bool VerbsStream::tick() noexcept {
  if (state_ != Errc::ok) return false;
  if (session_ && session_->broken()) broken_ = Errc::no_memory;
  if (broken_ != Errc::ok) {
    fail(broken_);
    return false;
  }
  if (!open_) {
    // With soft-iWARP one answer in a hundred never leaves the queue of a pair that has just connected.
    const bool connected = caller_ && connection_ && connection_->connected();
    if (connected && endpoint_.shared().device.iwarp() && endpoint_.attended() >= answer_until_ &&
        silent_calls_++ < kMostSilentCalls)
      redial();
    if (state_ == Errc::ok && endpoint_.attended() >= handshake_until_) {
      if (!caller_) endpoint_.note(SecurityEvent::handshake_late, *this, "it has not finished its handshake");
      fail(Errc::unreachable);
    }
    return state_ == Errc::ok;
  }
  if (half_frame_stays()) return false;
  pace_.look(peer_works(*session_), moved_, endpoint_.attended(),
             Liveness::handshake_time(endpoint_.deadlines()));
  const bool owes = session_->awaits_peer() || (caller_ && session_->has_output());
  const auto patience = Liveness::patience(endpoint_.deadlines(), session_->one_of_several());
  switch (liveness_.look(owes, received_, endpoint_.attended(), patience)) {
    case Liveness::Verdict::lost:
      fail(Errc::peer_lost);
      return false;
    case Liveness::Verdict::ask:
      session_->ping();
      flush();
      break;
    case Liveness::Verdict::well:
      if (!caller_ && !owes) send_sign_of_life();
  }
  return owes || others_wait_ || !caller_;
}

// Whoever begins a frame and does not go on would hold this stream for ever. Ends it at the deadline.
bool VerbsStream::half_frame_stays() noexcept {
  const auto verdict =
      completes_frames_.look(session_->incoming().unfinished(), received_, endpoint_.attended(),
                             Liveness::patience(endpoint_.deadlines(), false));
  if (verdict != Liveness::Verdict::lost) return false;
  endpoint_.note(SecurityEvent::half_frame, *this, "it began a frame, and did not go on");
  fail(Errc::peer_lost);
  return true;
}

// The machine of an idle caller may be gone. This side's device finds that out only when something is sent.
void VerbsStream::send_sign_of_life() noexcept {
  const auto now = endpoint_.attended();
  if (now - sign_sent_at_ < Liveness::patience(endpoint_.deadlines(), false)) return;
  sign_sent_at_ = now;
  send_credits();
}

void VerbsStream::end_if_key_removed() noexcept {
  if (session_ && session_->sender().key_removed()) fail(Errc::peer_lost);
}

void VerbsStream::fail(Errc error) noexcept {
  if (state_ != Errc::ok) return;
  state_ = error;
  endpoint_.services().on_path_ended();
  const bool stood = std::exchange(open_, false);
  LinkedList<VerbsStream, StreamRedials>::erase(*this);
  const PeerId peer = session_ ? session_->sender().handle() : kNoPeer;
  const bool rail = session_ && session_->one_of_several();
  connection_.reset();
  mr_.reset();
  if (session_) session_->fail(error);
  if (peer != kNoPeer && stood && !rail && error != Errc::canceled)  // of rails others tell
    endpoint_.services().events.tell_lost({.error = error, .peer = peer, .link = endpoint_.link()});
  told_.on_failed(error);
}

}  // namespace fab::verbs

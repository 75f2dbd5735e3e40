#include "providers/shm/channel.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/locks/tsan.h"
#include "base/memory/fault_guard.h"
#include "base/memory/foreign_file.h"

namespace fab::shm {
namespace {

ChannelHeader& header_of(const Mapping& mapping) noexcept {
  return *reinterpret_cast<ChannelHeader*>(mapping.data());
}

EagerMemory messages_of(const Mapping& mapping) noexcept {
  return {header_of(mapping).messages, reinterpret_cast<EagerCell*>(mapping.data() + kCellsOffset),
          mapping.data() + kPayloadOffset};
}

std::span<std::byte> ring_bytes(const Mapping& mapping, bool to_target) noexcept {
  return mapping.bytes().subspan(kRingsOffset + (to_target ? 0 : kRingBytes), kRingBytes);
}

}  // namespace

Digest channel_proof(const std::string& secret, const Address& initiator, std::uint16_t context,
                     std::uint16_t target_context_slot, const std::uint8_t (&target_domain)[16]) {
  if (secret.empty()) return {};
  WireWriter text;
  text.raw("pyfab shm channel 1").raw(initiator.encode()).put(context);
  text.raw({reinterpret_cast<const char*>(target_domain), sizeof target_domain}).put(target_context_slot);
  return hmac_sha256(secret, text.take());
}

Channel::Channel(OwnFd file, Mapping mapping, Peer peer, Session::Services services, AttachBatch* direct)
    : file_(std::move(file)),
      mapping_(std::move(mapping)),
      peer_(std::move(peer.domain)),
      peer_context_slot_(peer.context_slot),
      initiator_(file_.valid()),
      out_(initiator_ ? header_of(mapping_).to_target : header_of(mapping_).to_initiator,
           ring_bytes(mapping_, initiator_)),
      in_(initiator_ ? header_of(mapping_).to_initiator : header_of(mapping_).to_target,
          ring_bytes(mapping_, !initiator_)),
      slice_(*services.slice),
      on_more_(services.on_more),
      eager_out_(messages_of(mapping_)),
      eager_in_(messages_of(mapping_)),
      announcements_(*reinterpret_cast<AnnouncementCells*>(mapping_.data() + kAnnouncementsOffset)),
      direct_(direct),
      proof_(peer_->address().process.pid, peer_->segment(), peer_->address().domain_id, nullptr) {
  services.on_output = [this, told = std::move(services.on_output)] {
    if (told) told();
    if (!moving_) flush();
  };
  if (direct_) services.reader = this;
  services.small_messages = this;
  services.ledger = &announcements_;
  services.notices = true;
  // If both ends are in one process, nothing can outlive the initiator, so there is nothing to wait for.
  held_ = !initiator_ || peer_->address().process == this_process();
  services.handover = held_ ? Handover::at_once : Handover::when_held;
  session_ = std::make_unique<Session>(std::move(services));
  peer_->watch();
}

bool Channel::taken() const noexcept {
  return header_of(mapping_).hold.load(std::memory_order_acquire) == Hold::both;
}

Channel::~Channel() {
  header_of(mapping_).closed.fetch_or(initiator_ ? closed_by::kInitiator : closed_by::kTarget);
  peer_->wake(peer_context_slot_, work::kLook);
}

std::unique_ptr<Channel> Channel::create(Peer peer, const Address& self, std::uint16_t context,
                                         Session::Services services, AttachBatch* direct) {
  const Address& target = peer.domain->address();
  OwnFd file = make_memory_file("pyfab-channel", kChannelBytes);
  Mapping mapping = Mapping::shared(file.get(), 0, kChannelBytes);
  ChannelHeader& header = header_of(mapping);
  header.magic = kChannelMagic;
  header.layout = versions::kSharedLayout;
  header.initiator_context = context;
  header.target_context_slot = peer.context_slot;
  self.encode().copy(header.initiator, sizeof header.initiator);
  std::memcpy(header.target_domain, target.domain_id, sizeof header.target_domain);
  const Digest proof =
      channel_proof(services.sender->key().secret, self, context, peer.context_slot, target.domain_id);
  std::memcpy(header.proof, proof.data(), sizeof header.proof);
  MadeChannel made{
      .target_context_slot = peer.context_slot, .context_slot = self.context_slot, .context = context};
  std::ranges::copy(target.domain_id, made.target_domain);
  Segment& own = services.segment;
  std::unique_ptr<Channel> channel(
      new Channel(std::move(file), std::move(mapping), std::move(peer), std::move(services), direct));
  channel->publication_.emplace(own, FileId::of(channel->fd()).inode, made);
  header_of(channel->mapping_).published = channel->publication_->number();
  return channel;
}

Channel::Offer Channel::open(const AccessSlot& slot, std::uint16_t context_slot,
                             const std::uint8_t (&domain_id)[16], const AuthKeys& keys) {
  const ProcessId claimant = SlotOwner::unpack(slot.owner.load());
  const auto refuse = [&](const char* why) {
    return Error(Errc::protocol, "the channel of process " + std::to_string(claimant.pid) + " " + why);
  };
  const ForeignFile found = open_foreign(claimant.pid, slot.channel_fd.load(std::memory_order_acquire),
                                         ForeignKind::sealed_memory, O_RDWR);
  if (!found.fd.valid() && is_shortage(found.error))
    throw std::system_error(found.error, std::generic_category(),
                            "open a channel of process " + std::to_string(claimant.pid));
  if (!found.fd.valid()) throw refuse("is no channel");
  Offer offer;
  // Read and not mapped, because nothing but this is known of another layout.
  struct {
    std::uint64_t magic;
    std::uint32_t layout;
  } first{};
  if (::pread(found.fd.get(), &first, sizeof first, 0) != static_cast<ssize_t>(sizeof first) ||
      first.magic != kChannelMagic)
    throw refuse("is no channel");
  if (first.layout != versions::kSharedLayout)
    throw OtherLayout("the channel of process " + std::to_string(claimant.pid), first.layout);
  if (!std::cmp_equal(found.status.st_size, kChannelBytes)) throw refuse("is no channel");
  offer.file = {found.status.st_dev, found.status.st_ino};
  offer.mapping = Mapping::shared(found.fd.get(), 0, kChannelBytes);
  const ChannelHeader& header = header_of(offer.mapping);
  // Accepted again, it would be read from the front of its rings, and what was received before would be
  // received again.
  if ((header.closed.load() & closed_by::kTarget) != 0) throw refuse("was closed here");
  const auto initiator = Address::decode(std::string(header.initiator, sizeof header.initiator));
  if (!initiator || initiator->process != claimant) throw refuse("names another process");
  if (header.target_context_slot != context_slot ||
      std::memcmp(header.target_domain, domain_id, sizeof domain_id) != 0)
    throw refuse("is for another context");
  offer.initiator = *initiator;
  offer.initiator_context = header.initiator_context;
  offer.published = header.published;
  offer.made = {.target_context_slot = context_slot,
                .context_slot = initiator->context_slot,
                .context = offer.initiator_context};
  std::ranges::copy(domain_id, offer.made.target_domain);
  // A copy is judged, because the initiator may still write to the header.
  Digest proof;
  std::memcpy(proof.data(), header.proof, sizeof proof);
  auto proven = proven_key(keys, proof, [&](const std::string& secret) {
    return channel_proof(secret, offer.initiator, offer.initiator_context, context_slot, domain_id);
  });
  if (!proven)
    throw Error(Errc::key_rejected,
                "process " + std::to_string(claimant.pid) + " has no authorization key of this context");
  offer.key = std::move(*proven);
  return offer;
}

std::unique_ptr<Channel> Channel::accept(Offer offer, std::shared_ptr<PeerDomain> peer,
                                         Session::Services services, AttachBatch* direct) {
  const std::uint16_t context_slot = offer.initiator.context_slot;
  std::unique_ptr<Channel> channel(new Channel(OwnFd(), std::move(offer.mapping),
                                               {std::move(peer), context_slot}, std::move(services), direct));
  // This comes last, because from now on the initiator relies on the channel.
  Hold hold = Hold::initiator;
  if (!header_of(channel->mapping_).hold.compare_exchange_strong(hold, Hold::both))
    throw Error(Errc::peer_lost,
                "process " + std::to_string(channel->peer().address().process.pid) + " has given up");
  channel->peer_->wake(context_slot, work::kLook);  // the initiator may wait for this
  return channel;
}

// Tells the session once the target has the file.
void Channel::look_at_hold() noexcept {
  if (held_ || !taken()) return;
  held_ = true;
  session_->held();
}

// Ends the channel if the session had no memory for something that the peer is owed.
void Channel::look_at_memory() noexcept {
  if (error_ != Errc::ok || !session_->broken()) return;
  error_ = Errc::no_memory;
  on_more_();  // the next turn of the endpoint drops the channel
}

bool Channel::unread() const noexcept {
  if (!session_->messages().owes()) return false;
  if (session_->has_output()) return true;
  // The target can still read what lies in a file that it holds, except announced messages: their bytes are
  // in this process.
  const bool stays = taken() && !session_->messages().announces();
  return !stays && (!out_.all_read() || !eager_out_.all_taken());
}

void Channel::give_up(Errc why) noexcept {
  ChannelHeader& header = header_of(mapping_);
  Hold hold = Hold::initiator;
  if (!held_ && !header.hold.compare_exchange_strong(hold, Hold::nobody)) look_at_hold();
  if (why != Errc::canceled) header.given_up.store(1);
  session_->fail(why);
}

bool Channel::check(std::chrono::nanoseconds now, std::chrono::nanoseconds patience, bool more) noexcept {
  flush();
  const bool owes = more || session_->awaits_peer();
  switch (liveness_.look(owes, received_ + out_.seen_read(), now, patience)) {
    case Liveness::Verdict::lost:
      if (error_ == Errc::ok) error_ = Errc::peer_lost;
      return false;
    case Liveness::Verdict::ask:
      session_->ping();
      flush();
      break;
    case Liveness::Verdict::well:
      break;
  }
  return owes;
}

bool Channel::take_in() noexcept {
  bool tell = false;
  std::size_t taken = 0;
  pending_ = false;
  while (error_ == Errc::ok && in_.readable()) {
    if (slice_.spent()) {
      pending_ = true;
      break;
    }
    tsan_rings.acquire();
    if (header_of(mapping_).given_up.load(std::memory_order_acquire) != 0) session_->peer_gave_up();
    iovec places[2];
    const std::size_t count = session_->input(places);
    std::size_t got = 0;
    if (!guarded([&] { got = in_.read(places, count); })) {
      if (session_->incoming().fault()) continue;
      error_ = Errc::protocol;
      break;
    }
    taken += got;
    error_ = session_->received(got);
    if (in_.writer_waits()) tell = true;
  }
  if (in_.broken()) error_ = Errc::protocol;
  if (taken && error_ == Errc::ok) session_->end_turn();
  if (tell) peer_->wake(peer_context_slot_, work::kLook);
  received_ += taken;
  return taken != 0;
}

bool Channel::send_out(Cost cost) noexcept {
  constexpr std::size_t kPieces = 64;
  bool sent = false;
  iovec pieces[kPieces];
  std::size_t most = kPieces;
  while (const std::size_t count = session_->output(pieces, most)) {
    if (cost == Cost::slice && slice_.spent()) {
      on_more_();
      break;
    }
    tsan_rings.release();
    std::size_t done = 0;
    if (!guarded([&] { done = out_.write(pieces, count); })) {
      // From here on the pieces go one at a time, to learn whose memory is missing.
      if (std::exchange(most, 1) == 1 && !session_->output_fault()) {
        error_ = Errc::protocol;
        break;
      }
    } else if (done) {
      session_->sent(done);
      sent = true;
    } else if (out_.broken() || !out_.wait_for_room()) {
      break;
    }
  }
  if (out_.broken()) error_ = Errc::protocol;
  if (sent) peer_->wake(peer_context_slot_, work::kLook);
  return sent;
}

bool Channel::may_notify() noexcept {
  if (session_->has_output()) send_out();
  return error_ == Errc::ok && !session_->has_output() && out_.wait_for_room(kHeaderBytes);
}

bool Channel::notify(const Transfer& put) noexcept {
  if (!session_->post_notify(put)) return false;
  // The bytes of the put have paid for it.
  send_out(Cost::none);
  look_at_memory();
  return error_ == Errc::ok;
}

// Only the frames, because messages in the eager ring would be in front of them again and again.
bool Channel::take_noted() noexcept {
  if (in_.position() < noted_ && error_ == Errc::ok) {
    moving_ = true;
    take_in();
    session_->go_on();
    moving_ = false;
    flush();
    if (pending_) on_more_();
  }
  return in_.position() >= noted_ || error_ != Errc::ok;
}

bool Channel::move() noexcept {
  const bool closed = header_of(mapping_).closed.load(std::memory_order_acquire) != 0;
  look_at_hold();
  moving_ = true;
  // Messages in the eager ring may have waited for frames that come now, and nobody tells of them again.
  bool in = !initiator_ && take_messages();
  if (take_in()) {
    in = true;
    if (!initiator_) take_messages();
  }
  pending_ |= !initiator_ && eager_in_.ready();
  session_->go_on();
  moving_ = false;
  if (closed && !pending_ && error_ == Errc::ok) error_ = Errc::peer_lost;
  const bool out = error_ == Errc::ok && send_out();
  look_at_memory();
  return in || out;
}

// --- the eager ring

bool Channel::push(const Transfer& transfer) noexcept {
  if (!initiator_ || !eager_out_.push(transfer)) return false;
  untold_ = true;
  return true;
}

std::uint32_t Channel::number() noexcept { return initiator_ ? eager_out_.skip() : 0; }

bool Channel::take_message() noexcept {
  Matched arrived;
  const std::byte* bytes = eager_in_.look(arrived.head);
  const Errc error = bytes ? session_->accept(arrived, bytes) : Errc::protocol;
  eager_in_.skip();
  if (error_ == Errc::ok) error_ = error;
  return error_ == Errc::ok;
}

bool Channel::come_to(std::uint32_t number) noexcept {
  // Only the initiator sends messages, and no more than kCells of them can be in the ring before this one.
  if (initiator_ || number - eager_in_.next() > kCells) return false;
  while (eager_in_.next() != number)
    if (!eager_in_.ready() || !take_message()) return false;
  eager_in_.skip();
  eager_in_.tell_taken();
  return true;
}

bool Channel::take_messages() noexcept {
  unsigned taken = 0;
  while (!slice_.spent() && error_ == Errc::ok && eager_in_.ready()) {
    ++taken;
    slice_.spend(0);
    take_message();
  }
  if (taken == 0) return false;
  eager_in_.tell_taken();
  received_ += taken;
  took_messages_ = true;
  return true;
}

// --- announced messages

void Channel::read(std::span<Read> reads) noexcept {
  if (peer_->gone())
    for (Read& read : reads) read.outcome = Errc::peer_lost;
  else
    while (!reads.empty()) reads = reads.subspan(read_first(reads));
}

// Does as many of the first reads as fit into one batch, and returns their number.
std::size_t Channel::read_first(std::span<Read> reads) noexcept {
  direct_->begin(proof_, false, 0);
  std::size_t count = 0;
  for (; count < reads.size() && direct_->fits(1, 1); ++count) {
    const Read& read = reads[count];
    const PieceCursor from(read.from.data(), read.from.size());
    const PieceList local = list_pieces(read.to, read.begin, read.length, direct_->local_room());
    const PieceList remote = list_pieces(from, read.begin, read.length, direct_->remote_room());
    if (read.length == 0 || local.bytes < read.length || remote.bytes < read.length) break;
    direct_->add(local.pieces, remote.pieces, read.length, Errc::ok);
  }
  if (count == 0) {  // more pieces than any call takes
    reads.front().outcome = Errc::not_supported;
    return 1;
  }
  const Errc stopped = direct_->run();
  for (std::size_t i = 0; i < count; ++i)
    reads[i].outcome = i < direct_->tried() ? direct_->verdict(i) : stopped;
  return count;
}

void Channel::flush() noexcept {
  if (untold_) {
    untold_ = false;
    // After this, either this side sees that the target no longer looks, or the target sees the messages.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!eager_out_.polled() || peer_->sleeps(peer_context_slot_))
      peer_->wake(peer_context_slot_, work::kLook);
  }
  if (error_ == Errc::ok && session_->has_output()) send_out();
  look_at_memory();
}

}  // namespace fab::shm

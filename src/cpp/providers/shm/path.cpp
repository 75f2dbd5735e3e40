#include "providers/shm/path.h"

#include <algorithm>

#include "base/memory/copy_memory.h"
#include "base/memory/fault_guard.h"
#include "base/memory/guarded_copy.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/atomics.h"
#include "fabric/memory/check_transfer.h"
#include "fabric/memory/dma_buf.h"
#include "fabric/memory/local_memory.h"
#include "providers/shm/endpoint.h"

namespace fab::shm {
namespace {

// A transfer that is longer than a slice is moved by progress(). No more than a slice moves while an access
// is shown, so that a region that closes need not wait long.
constexpr std::uint64_t kAccessSlice = Slice::kBytes;
constexpr std::uint64_t kStreaming = 16 * 1024 * 1024;  // bytes; more than a process has of any cache
// Bytes of the longest transfer that goes through a busy channel and does not wait for it.
constexpr std::uint64_t kSmall = 16 * 1024;
constexpr std::size_t kMostWaiting = 1024;

bool is_put_or_get(const Transfer& transfer) noexcept {
  return transfer.op == OpCode::write || transfer.op == OpCode::read;
}

// Whether a transfer, by its kind and length, can be done in one go and without the channel.
bool simple(const Transfer& transfer) noexcept {
  return transfer.length <= kAccessSlice && transfer.op != OpCode::send &&
         (transfer.flags & transfer_flag::kRemoteData) == 0 && transfer.delivery != Delivery::commit;
}

// Puts and gets with local memory in pieces, and past the caches.
Errc move_pieces(const Transfer& transfer, std::byte* remote, std::uint64_t from,
                 std::uint64_t length) noexcept {
  PieceCursor local = local_of(transfer);
  local.skip(from);
  const bool there =
      transfer.op == OpCode::write ? gather(local, remote, length) : scatter(remote, local, length);
  return there ? Errc::ok : Errc::bounds;
}

Errc stream(const Transfer& transfer, std::byte* remote, std::uint64_t from, std::uint64_t length) noexcept {
  std::byte *to = remote, *source = transfer.local + from;
  if (transfer.op == OpCode::read) std::swap(to, source);
  return guarded([=] { copy_streaming(to, source, length); }) ? Errc::ok : Errc::bounds;
}

}  // namespace

ShmPath::ShmPath(ShmEndpoint& endpoint, PeerId id, std::shared_ptr<PeerDomain> peer, Entry entry)
    : endpoint_(endpoint),
      id_(id),
      peer_(std::move(peer)),
      claimed_(std::move(entry.slot)),
      part_(std::move(entry.part)),
      context_slot_(entry.context_slot),
      auth_index_(entry.auth_index),
      requester_{peer_->segment().rights_of(entry.context_slot), entry.auth},
      slot_(*claimed_),
      known_(*peer_, endpoint.copy_mode()),
      proof_(peer_->address().process.pid, peer_->segment(), peer_->address().domain_id, &slot_) {
  secret_.set(endpoint.key(auth_index_).secret);
  endpoint_.add(*this);
}

ShmPath::~ShmPath() {
  if (state_ == Errc::ok) lose(Errc::canceled);
  endpoint_.remove(*this);
  const bool shown = channel_ != nullptr;
  if (shown) {
    slot_.channel_fd.store(-1);
    slot_.channel_epoch.fetch_add(1);
  }
  if (shown && !peer_->gone()) peer_->wake(context_slot_, work::kChannels);
}

// The channel ends with this path, and messages that have completed must not be lost with it.
bool ShmPath::lingers() noexcept {
  if (state_ != Errc::ok || !channel_) return false;
  const Address& self = endpoint_.address();
  if (context_slot_ == self.context_slot && std::ranges::equal(peer_->address().domain_id, self.domain_id))
    return false;
  channel_->flush();
  return channel_->unread() && !peer_->gone() && peer_->serves(context_slot_);
}

std::uint64_t ShmPath::oldest() const noexcept {
  const std::uint64_t here = waiting_.empty() ? counts_.posted + 1 : waiting_.front().number;
  return channel_ ? std::min(here, channel_->session().oldest()) : here;
}

PathReport ShmPath::report() const {
  static constexpr const char* kNames[] = {"mapped", "cross-memory attach", "ring"};
  return {endpoint_.link(), kNames[static_cast<std::size_t>(known_.last_way())]};
}

// --- the fast way

inline Errc ShmPath::judge(const Transfer& transfer, const KnownRegion& region,
                           std::uint64_t& offset) const noexcept {
  if (transfer.piece_count != 0 || !transfer.local || !is_put_or_get(transfer) || DmaBuf::any_hidden())
    if (const Errc wrong = check_copied(transfer); wrong != Errc::ok) return wrong;
  return known_.view().judge(*region.entry,
                             {transfer.key, region.state, transfer.op, transfer.remote, transfer.length},
                             requester_, offset);
}

[[gnu::hot]] std::size_t ShmPath::post(std::span<const Transfer> batch) noexcept {
  if (state_ == Errc::ok && peer_->gone()) lose(Errc::peer_lost);
  if (!batch.empty() && batch.front().op == OpCode::send && waiting_.empty() && state_ == Errc::ok)
    if (const std::size_t sent = post_messages(batch)) return sent;
  const bool waited = busy();
  std::size_t taken = 0;
  while (taken < batch.size()) {
    const auto rest = batch.subspan(taken);
    const Transfer& next = rest.front();
    if (state_ != Errc::ok) {
      ++counts_.posted;
      settle(next, state_);
      ++taken;
    } else if (const std::size_t moved = waiting_.empty() && channel_idle() ? run(rest) : 0) {
      taken += moved;
    } else if (state_ != Errc::ok) {
      continue;  // lost while trying
    } else if (waiting_.empty() && by_channel(next)) {
      Channel* channel = open_channel();
      const std::size_t sent = channel ? channel->session().post(rest.first(1)) : 0;
      if (sent == 0 && state_ == Errc::ok) break;
      taken += sent;
    } else {
      if (waiting_.size() == kMostWaiting) break;
      if (!wait(next)) {
        if (!waiting_.empty() || !channel_idle()) break;  // there may be memory once these are done
        ++counts_.posted;
        ++taken;
        settle(next, Errc::no_memory);
        continue;
      }
      ++counts_.posted;
      ++taken;
      blocked_ = !channel_idle();
      if (waiting_.size() == 1 && next.length <= kAccessSlice)
        while (!blocked_ && !waiting_.empty() && state_ == Errc::ok && !endpoint_.slice().spent()) advance();
    }
  }
  if (channel_) channel_->flush();
  if (!waited && busy()) endpoint_.continue_later();
  return taken;
}

// Posts the messages that `batch` begins with, and returns how many it took. 0: the channel takes none now.
std::size_t ShmPath::post_messages(std::span<const Transfer> batch) noexcept {
  Channel* channel = open_channel();
  if (!channel) return 0;
  std::size_t messages = 1;
  while (messages < batch.size() && batch[messages].op == OpCode::send) ++messages;
  const std::size_t sent = channel->session().post(batch.first(messages));
  channel->flush();
  return sent;
}

// Does the first transfers of `batch`, as far as they are simple() and for one region, and returns how many.
// 0: the first one has to wait or to go through the channel.
[[gnu::hot]] std::size_t ShmPath::run(std::span<const Transfer> batch) noexcept {
  if (batch.front().op == OpCode::send) return 0;
  Access access(slot_);
  const KnownRegion* region = known_.enter(batch.front().key, access);
  if (!region) {
    ++counts_.posted;
    settle(batch.front(), Errc::key_rejected);
    return 1;
  }
  switch (region->way) {
    case Way::mapped:
      return run_mapped(batch, *region);
    case Way::attach:
      return run_attach(batch, *region);
    case Way::ring:
      break;
  }
  return 0;
}

// Moves bytes [from, from + length) of a transfer that judge() has allowed, and that starts at `offset` of
// the region. The caller shows the access.
[[gnu::always_inline]] inline Errc ShmPath::move_slice(const Transfer& transfer, const KnownRegion& region,
                                                       std::uint64_t offset, std::uint64_t from,
                                                       std::uint64_t length) noexcept {
  // The verdict relied on what the owner says of the region. The length that is mapped here is certain.
  if (offset > region.length || from + length > region.length - offset) return Errc::bounds;
  std::byte* const remote = region.memory + offset + from;
  if (!is_put_or_get(transfer)) return update(transfer, region, remote);
  if (transfer.piece_count != 0) return move_pieces(transfer, remote, from, length);
  if (transfer.length >= kStreaming || (transfer.flags & transfer_flag::kPastCaches) != 0)
    return stream(transfer, remote, from, length);
  std::byte* const local = transfer.local + from;
  const bool there = transfer.op == OpCode::write ? copy_guarded(remote, local, length)
                                                  : copy_guarded(local, remote, length);
  return there ? Errc::ok : Errc::bounds;
}

[[gnu::hot]] std::size_t ShmPath::run_mapped(std::span<const Transfer> batch,
                                             const KnownRegion& region) noexcept {
  std::uint64_t bytes = 0;
  std::size_t done = 0;
  for (const Transfer& transfer : batch) {
    if (transfer.op == OpCode::read && done + 1 < batch.size()) {
      const Transfer& next = batch[done + 1];
      if (next.remote < region.length) prefetch_memory(region.memory + next.remote, next.length);
    }
    if (transfer.key != region.key || !simple(transfer) || transfer.length > kAccessSlice - bytes) break;
    bytes += transfer.length;
    ++counts_.posted;
    ++done;
    std::uint64_t offset;
    Errc verdict = judge(transfer, region, offset);
    if (verdict == Errc::ok) verdict = move_slice(transfer, region, offset, 0, transfer.length);
    if (verdict == Errc::ok) count(transfer, region);
    settle(transfer, verdict);
  }
  return done;
}

std::size_t ShmPath::run_attach(std::span<const Transfer> batch, const KnownRegion& region) noexcept {
  AttachBatch& calls = endpoint_.attach_batch();
  const OpCode op = batch.front().op;
  calls.begin(proof_, op == OpCode::write);
  std::uint64_t bytes = 0;
  for (const Transfer& transfer : batch) {
    if (transfer.key != region.key || transfer.op != op || !is_put_or_get(transfer) || !simple(transfer) ||
        transfer.length > kAccessSlice - bytes ||
        !calls.fits(std::max<std::size_t>(transfer.piece_count, 1), region.entry->piece_count))
      break;
    bytes += transfer.length;
    std::uint64_t offset;
    const Errc verdict = judge(transfer, region, offset);
    if (verdict != Errc::ok) {
      calls.add(0, 0, 0, verdict);
    } else {
      const std::size_t remote = known_.pieces(region, offset, transfer.length, calls.remote());
      const PieceList local = list_pieces(local_of(transfer), 0, transfer.length, calls.local_room());
      calls.add(local.pieces, remote, transfer.length, Errc::ok);
    }
  }
  if (calls.size() == 0) return 0;
  const Errc stopped = calls.run();
  for (std::size_t i = 0; i < calls.tried(); ++i) {
    ++counts_.posted;
    if (calls.verdict(i) == Errc::ok) count(batch[i], region);
    settle(batch[i], calls.verdict(i));
  }
  if (stopped == Errc::peer_lost) lose(Errc::peer_lost);
  if (stopped == Errc::not_supported) known_.forbid_attach();
  return calls.tried();
}

Errc ShmPath::update(const Transfer& transfer, const KnownRegion& region, std::byte* remote) noexcept {
  modified_ = false;
  const Errc outcome = apply_atomic(transfer, remote, &modified_);
  if (outcome != Errc::ok && modified_) count(transfer, region);  // the former values could not be stored
  return outcome;
}

// --- what takes more than one step

// Lets a transfer wait until progress() comes to it. False: there is no memory for that.
bool ShmPath::wait(const Transfer& transfer) noexcept try {
  waiting_.push_back({transfer, counts_.posted + 1});
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

// Moves the next slice of a transfer. After Step::done, `verdict` is its outcome.
ShmPath::Step ShmPath::step(Waiting& waiting, Errc& verdict) noexcept {
  const Transfer& transfer = waiting.transfer;
  Access access(slot_);
  const KnownRegion* region = known_.enter(transfer.key, access);
  std::uint64_t offset = 0;
  verdict = region ? judge(transfer, *region, offset) : Errc::key_rejected;
  if (waiting.moved != 0 && region && region->state != waiting.state) verdict = Errc::key_rejected;
  if (verdict != Errc::ok) return Step::done;
  waiting.state = region->state;
  // Nothing answers a notice, so it waits until the target is known to take what comes, and has room for it.
  // The bytes wait with it: a put whose notice cannot be sent is told unreachable, which means that it did
  // not happen.
  const bool notifies = (transfer.flags & transfer_flag::kRemoteData) != 0;
  Channel* const channel = notifies ? open_channel() : nullptr;
  if (notifies && (!channel || !channel->taken() || !channel->may_notify())) return Step::blocked;
  // An atomic is never cut.
  const std::uint64_t slice =
      is_put_or_get(transfer)
          ? std::min({kAccessSlice, endpoint_.slice().left(), transfer.length - waiting.moved})
          : transfer.length;
  endpoint_.slice().spend(slice);
  if (slice) {
    verdict = region->way == Way::mapped ? move_slice(transfer, *region, offset, waiting.moved, slice)
                                         : attach_slice(transfer, *region, offset, waiting.moved, slice);
    if (verdict == Errc::not_supported && region->way == Way::attach) {
      known_.forbid_attach();
      waiting.moved = 0;  // all of it goes through the channel
      return Step::again;
    }
    if (verdict != Errc::ok) return Step::done;
    waiting.moved += slice;
    if (waiting.moved < transfer.length) return Step::again;
  }
  if (notifies && !channel->notify(transfer)) return Step::blocked;
  count(transfer, *region);
  return Step::done;
}

Errc ShmPath::attach_slice(const Transfer& transfer, const KnownRegion& region, std::uint64_t offset,
                           std::uint64_t from, std::uint64_t length) noexcept {
  AttachBatch& calls = endpoint_.attach_batch();
  for (std::uint64_t done = 0; done < length;) {
    calls.begin(proof_, transfer.op == OpCode::write);
    const PieceList local = list_pieces(local_of(transfer), from + done, length - done, calls.local_room());
    const std::size_t remote = known_.pieces(region, offset + from + done, local.bytes, calls.remote());
    calls.add(local.pieces, remote, local.bytes, Errc::ok);
    const Errc stopped = calls.run(), outcome = stopped == Errc::ok ? calls.verdict(0) : stopped;
    if (outcome != Errc::ok) return outcome;
    done += local.bytes;
  }
  return Errc::ok;
}

// Goes on with the first waiting transfer, as far as the slice goes. The slice must not be spent. True if
// anything was done.
bool ShmPath::advance() noexcept {
  Waiting& first = waiting_.front();
  if (first.moved == 0 && by_channel(first.transfer)) {
    Channel* channel = open_channel();
    if (state_ != Errc::ok) return true;  // lost on the way: all is settled
    // The transfer was counted as posted when it began to wait.
    const bool sent = channel && counts_.repost(first.number, [&] {
      return channel->session().post({&first.transfer, 1}) != 0;
    });
    blocked_ = !sent;
    if (sent) {
      endpoint_.slice().spend(0);
      waiting_.pop_front();
      channel->flush();
    }
    return sent;
  }
  blocked_ = !channel_idle();
  if (blocked_) return false;
  Errc verdict;
  const Step outcome = step(first, verdict);
  if (state_ != Errc::ok) return true;  // lost on the way: all is settled
  blocked_ = outcome == Step::blocked;
  if (outcome == Step::done) {
    const Transfer transfer = first.transfer;
    waiting_.pop_front();
    settle(transfer, verdict);
    if (verdict == Errc::peer_lost) lose(Errc::peer_lost);
  }
  return !blocked_;
}

bool ShmPath::progress() noexcept {
  if (state_ != Errc::ok) return false;
  bool moved = channel_ && channel_->move();
  if (channel_ && channel_->error() != Errc::ok) {
    lose(channel_->error());
    return true;
  }
  if (waiting_.empty()) return moved;
  if (peer_->gone()) {
    lose(Errc::peer_lost);
    return true;
  }
  while (!waiting_.empty()) {
    if (endpoint_.slice().spent()) {
      endpoint_.continue_later();
      break;
    }
    if (!advance()) break;
    moved = true;
  }
  return moved;
}

// --- the channel

// Whether a transfer must or should go through the channel.
bool ShmPath::by_channel(const Transfer& transfer) noexcept {
  if (transfer.delivery == Delivery::commit || transfer.op == OpCode::send) return true;
  if (!channel_idle() && transfer.length <= kSmall) return true;
  Access access(slot_);
  const KnownRegion* region = known_.enter(transfer.key, access);
  if (!region) return false;
  return region->way == Way::ring || (region->way == Way::attach && !is_put_or_get(transfer));
}

Channel* ShmPath::open_channel() noexcept try {
  // If the context slot takes other keys, it belongs to another endpoint by now, which would not take the
  // channel.
  const bool there = peer_->serves(context_slot_) &&
                     (channel_ || authorized(peer_->segment(), context_slot_,
                                             endpoint_.key(auth_index_).secret) == requester_.auth);
  if (!there) {
    lose(Errc::peer_lost);
    return nullptr;
  }
  if (!channel_) {
    channel_ = Channel::create({peer_, context_slot_}, endpoint_.address(), endpoint_.context(),
                               endpoint_.session_services(counts_, part_, auth_index_), endpoint_.reader());
    channel_->session().sender().known_as(id_);
    slot_.target_context = context_slot_;
    slot_.channel_fd.store(channel_->fd(), std::memory_order_release);
    peer_->wake(context_slot_, work::kChannels);
    if (const Errc hindrance = peer_->hindrance_or(Errc::ok); hindrance != Errc::ok) {
      lose(hindrance);
      return nullptr;
    }
  }
  endpoint_.expect_answers();
  return channel_.get();
} catch (const std::exception& error) {
  lose(shortage_or(error, Errc::no_memory));
  return nullptr;
}

// The layout for which the target refuses the channel; 0: it does not.
std::uint32_t ShmPath::refused_layout() const noexcept {
  const std::uint64_t refused = slot_.refused.load(std::memory_order_acquire);
  const bool of_this = refused >> 32 == slot_.channel_epoch.load(std::memory_order_relaxed);
  return of_this ? static_cast<std::uint32_t>(refused) : 0;
}

bool ShmPath::check(std::chrono::nanoseconds now, std::chrono::nanoseconds patience) noexcept {
  if (state_ != Errc::ok) return false;
  if (peer_->gone() || (channel_ && !peer_->serves(context_slot_))) {
    lose(Errc::peer_lost);
    return false;
  }
  if (!channel_) return false;
  if (const std::uint32_t layout = refused_layout(); layout != 0 && !channel_->taken()) {
    endpoint_.leave(peer_, layout);
    lose(Errc::unreachable);  // nothing of it has happened, and another link may lead to the peer
    return false;
  }
  const bool owed = channel_->check(now, patience, !waiting_.empty() || channel_->session().has_output());
  if (channel_->error() != Errc::ok) {
    const bool left = !channel_->taken() && peer_->looked_for_channels(context_slot_);
    if (left) endpoint_.leave(peer_, 0);  // another link may lead to it
    const Errc silence = peer_->hindrance_or(left ? Errc::unreachable : Errc::peer_lost);
    lose(channel_->error() == Errc::peer_lost ? silence : channel_->error());
  } else if (owed) {
    peer_->wake(context_slot_, work::kChannels);  // a doorbell that could not be opened before may open now
  }
  return owed;
}

void ShmPath::end_if_key_removed() noexcept {
  if (state_ == Errc::ok && secret_.removed_from(endpoint_.key(auth_index_))) lose(Errc::peer_lost);
}

// --- outcomes

[[gnu::cold]] void ShmPath::raise_counters_of(const Transfer& transfer, const KnownRegion& region) noexcept {
  bool stored = transfer.op == OpCode::write, fetched = transfer.op == OpCode::read;
  if (is_atomic(transfer.op)) {
    stored = transfer.length != 0 && modified_;
    fetched = transfer.op != OpCode::atomic;
    if (transfer.flags & transfer_flag::kPiece) {
      const bool last = (transfer.flags & transfer_flag::kLastPiece) != 0;
      stored = arrays_.applied(transfer.operation->array(), last, stored);
      fetched = fetched && last;
    }
  }
  Segment& segment = peer_->segment();
  const bool noticed = (transfer.flags & transfer_flag::kRemoteData) != 0;
  if (raise_counters(segment, *region.entry, requester_.rights, effects(stored, fetched), noticed))
    peer_->wake(segment.header().waiter_slot.load(), work::kLook);
}

inline void ShmPath::settle(const Transfer& transfer, Errc outcome) noexcept {
  counts_.settle(transfer.op, transfer.length, outcome);
  transfer.operation->settle(outcome, transfer.length);
}

void ShmPath::lose(Errc why) noexcept {
  if (state_ != Errc::ok) return;
  state_ = why;
  if (channel_) channel_->give_up(why);
  for (; !waiting_.empty(); waiting_.pop_front()) settle(waiting_.front().transfer, why);
  endpoint_.path_ended(id_, why);
}

}  // namespace fab::shm

#include "providers/shm/endpoint.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "base/bytes/sha256.h"
#include "base/deadline.h"
#include "base/process/identity.h"
#include "base/queues/room.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/event_queue.h"
#include "fabric/types/versions.h"
#include "providers/shm/path.h"

namespace fab::shm {
namespace {

// Nobody can mend that there is no way: Reach::expected.
struct Expected final : Error {
  using Error::Error;
};

bool has_ended(const ProcessId& process) noexcept try {
  return !ProcessWatch(process).alive();
} catch (const std::exception&) {
  return false;
}

}  // namespace

ShmEndpoint::ShmEndpoint(const EndpointServices& services, DomainServices domain, std::string link,
                         CopyMode mode)
    : services_(services),
      domain_(std::move(domain)),
      link_(std::move(link)),
      mode_(mode),
      waker_(services.poller),
      ticker_(services.poller, [this] { check_answers(); }) {
  const Digest host = sha256(host_identity());
  std::memcpy(self_.host, host.data(), sizeof self_.host);
  self_.process = this_process();
  self_.segment_fd = domain_.segment.fd();
  std::memcpy(self_.domain_id, domain_.domain_id, sizeof self_.domain_id);
  self_.context_slot = services.context_slot;

  int ends[2];
  check_call(::pipe2(ends, O_NONBLOCK | O_CLOEXEC), "pipe2");
  doorbell_.reset(ends[0]);
  doorbell_end_.reset(ends[1]);
  services_.poller.add(doorbell_.get(), EPOLLIN, *this);  // from here on nothing throws
  const std::uint64_t former = doorbell().load() & ~kDoorbellFd;
  doorbell().store(former + kDoorbellFd + 1 + static_cast<std::uint64_t>(doorbell_end_.get()) + 1);
  if (context_slot().work.load() != 0) waker_.wake();  // raised while nobody could ring
  if (services_.lingerers) services_.lingerers->push_back(*this);
  if (services_.notice_holders) services_.notice_holders->push_back(*this);
}

ShmEndpoint::~ShmEndpoint() {
  doorbell().fetch_and(~kDoorbellFd);  // before the pipe is closed and its number used again
  context_slot().sleeping.store(0);
  services_.poller.remove(doorbell_.get(), *this);
}

std::vector<Part> ShmEndpoint::parts() const { return {{link_, services_.context, self_.encode()}}; }

std::shared_ptr<PeerDomain> ShmEndpoint::peer_domain(const Address& address) const {
  for (const auto& weak : peers_)
    if (auto known = weak.lock();
        known && !known->gone() && known->address().process == address.process &&
        std::memcmp(known->address().domain_id, address.domain_id, sizeof address.domain_id) == 0)
      return known;
  std::erase_if(peers_, [](const auto& known) { return known.expired(); });
  auto made = std::make_shared<PeerDomain>(address, services_.poller, someone_left_);
  peers_.push_back(made);
  return looked_at_ = std::move(made);
}

// The peer behind a name; throws Error with the reason why there is none.
ShmEndpoint::Found ShmEndpoint::look_up(const Name& peer, std::uint16_t target,
                                        std::size_t auth_index) const {
  const auto refuse = [](const std::string& why) { return Error(Errc::unreachable, why); };
  const auto expected = [](const std::string& why) { return Expected(Errc::unreachable, why); };
  const Part* part = peer.find(link_, target);
  if (!part) throw expected("the peer has no " + link_ + " link");
  const auto address = Address::decode(part->bytes);
  if (const auto layout = Address::layout_of(part->bytes); layout != 0 && layout != versions::kSharedLayout)
    throw OtherLayout("the peer", layout);
  if (!address) throw refuse("the peer's name holds no valid shm part");
  if (std::memcmp(address->host, self_.host, sizeof self_.host) != 0)
    throw expected("other host, container or user: no shared memory");
  auto found = [&] {
    try {
      return peer_domain(*address);
    } catch (const DomainGone& error) {
      throw expected(error.what());
    } catch (const Error& error) {
      if (has_ended(address->process)) throw Expected(error.code(), error.what());
      throw;
    }
  }();
  const std::string who = "process " + std::to_string(address->process.pid);
  if (!may_open_ours(address->process.pid))
    throw refuse(who +
                 " may not open memory of this one, so it could not answer: give both the same group and "
                 "the same capabilities (see CapPrm and CapEff in /proc/PID/status)");
  if (found->left_layout() != 0)
    throw refuse(who + " has layout " + std::to_string(versions::kSharedLayout) +
                 " of shared memory, found layout " + std::to_string(found->left_layout()) +
                 " in this one, and takes nothing from it; use the same version of pyfab in both, or another "
                 "link");
  if (domain_.linked && found->left_channel())
    throw refuse(who +
                 " did not take the channel that this one opened to it; may it open files of this one in "
                 "/proc?");
  if (!found->serves(address->context_slot)) throw expected("the peer has closed its endpoint");
  const auto auth = authorized(found->segment(), address->context_slot, services_.keys[auth_index].secret);
  if (!auth)
    throw Expected(Errc::key_rejected,
                   who + " has opened its endpoint with another auth_key; give both the same one");
  return {std::move(found), address->context_slot, *auth};
}

Reach ShmEndpoint::reaches(const Name& peer, std::uint16_t target, std::size_t auth_index) const try {
  look_up(peer, target, auth_index);
  return {true, "same node"};
} catch (const Expected& error) {
  return {.why = error.what(), .error = error.code(), .expected = true};
} catch (const std::exception& error) {
  return {false, error.what(), shortage_or(error, Errc::unreachable)};
}

std::unique_ptr<Path> ShmEndpoint::connect(PeerId id, const Name& peer, std::uint16_t target,
                                           std::size_t auth_index) try {
  const auto [found, context_slot, auth] = look_up(peer, target, auth_index);
  looked_at_.reset();
  // The end of the peer's process is noticed even if nobody asks for the peer again, so what is kept of it is
  // given up then.
  found->watch();
  const int slot = found->segment().claim_slot(self_.process);
  if (slot < 0)
    throw Error(Errc::unreachable, "all " + std::to_string(kMaxSlots) + " access slots of process " +
                                       std::to_string(found->address().process.pid) + " are in use");
  ClaimedSlot claimed(&found->segment().slots()[slot]);
  return std::make_unique<ShmPath>(*this, id, found,
                                   ShmPath::Entry{.slot = std::move(claimed),
                                                  .part = *peer.find(link_, target),
                                                  .context_slot = context_slot,
                                                  .auth_index = auth_index,
                                                  .auth = auth});
} catch (const Error& error) {
  throw Error(error.code(), "no path over " + link_ + ": " + error.what());
} catch (const std::exception& error) {
  throw Error(shortage_or(error, Errc::unreachable), "no path over " + link_ + ": " + error.what());
}

Session::Services ShmEndpoint::session_services(PathCounts& counts, Part part, std::size_t auth_index) {
  return {.segment = domain_.segment,
          .completions = services_.completions,
          .receives = services_.receives,
          .sender = std::make_shared<Sender>(services_.peers, std::vector{std::move(part)},
                                             services_.keys[auth_index], &services_.links[link_]),
          .context_slot = services_.context_slot,
          .counts = counts,
          .wake_domain = services_.wake_domain,
          .table = &domain_.regions,
          .slice = &services_.slice,
          .on_more = [this] { continue_later(); },
          .observer = domain_.observer,
          .largest_message = kLargestMessage};
}

void ShmEndpoint::path_ended(PeerId peer, Errc why) noexcept {
  services_.on_path_ended();
  if (why != Errc::canceled) tell_lost(peer, why);
}

void ShmEndpoint::leave(const std::shared_ptr<PeerDomain>& peer, std::uint32_t layout) noexcept try {
  peer->leave_channel(layout);
  if (std::ranges::find(left_, peer) == left_.end()) left_.push_back(peer);
} catch (const std::bad_alloc&) {
  return;  // the next path finds it out again
}

void ShmEndpoint::tell_lost(PeerId peer, Errc why) noexcept {
  services_.events.tell_lost({.error = why, .peer = peer, .link = link_});
}

// --- progress

bool ShmEndpoint::take_messages() noexcept {
  bool any = false;
  ++next_taken_;
  for (std::size_t i = 0; i < polled_.size(); ++i)
    if (Channel* const channel = polled_[(next_taken_ + i) % polled_.size()]) any |= channel->take_messages();
  if (any) drop_broken();
  return any;
}

// From now on looks for messages of this channel in every turn. Another channel may lose its place for that.
void ShmEndpoint::poll(Channel& channel) noexcept {
  if (std::ranges::find(polled_, &channel) != polled_.end()) return;
  Channel*& place = polled_[next_polled_++ % polled_.size()];
  if (place) {
    place->poll_messages(false);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (place->messages_ready()) continue_later();  // they came while the peer did not have to tell
  }
  place = &channel;
  channel.poll_messages(true);
}

template <class Gone>
void ShmEndpoint::drop_served(Gone gone) noexcept {
  std::erase_if(served_, [&](const Served& served) {
    if (!gone(served)) return false;
    std::ranges::replace(polled_, served.channel.get(), nullptr);
    return true;
  });
}

// Drops channels that have ended. One that ended because there was no memory here is an event, because
// nothing else tells that messages of the peer were given up.
void ShmEndpoint::drop_broken() noexcept {
  drop_served([this](const Served& served) {
    const Errc error = served.channel->error();
    const PeerId peer = served.channel->session().sender().handle();
    if (error == Errc::no_memory && peer != kNoPeer) tell_lost(peer, error);
    return error != Errc::ok;
  });
}

bool ShmEndpoint::lingers() noexcept {
  bool any = false;
  for (ShmPath* path : paths_) any |= path->lingers();
  return any;
}

bool ShmEndpoint::note() noexcept {
  bool any = false;
  for (Served& served : served_) any |= served.channel->note();
  return any;
}

bool ShmEndpoint::take_noted() noexcept {
  bool all = true;
  for (Served& served : served_) all &= !services_.slice.spent() && served.channel->take_noted();
  drop_broken();
  return all;
}

bool ShmEndpoint::progress() noexcept {
  if (someone_left_) drop_lost();
  const std::uint32_t bits = context_slot().work.load(std::memory_order_relaxed)
                                 ? context_slot().work.exchange(0, std::memory_order_seq_cst)
                                 : 0;
  if (bits == 0 && !more_) return take_messages();
  if ((bits & work::kChannels) != 0) look_for_channels();
  more_ = false;
  // The kinds of work take turns in being first, because each of them may spend the slice.
  constexpr unsigned kKinds = 3;
  for (unsigned i = 0; i < kKinds; ++i) switch ((turns_ + i) % kKinds) {
      case 0:
        take_messages();
        break;
      case 1:
        move_served();
        break;
      default:
        move_paths();
    }
  ++turns_;
  if (more_) waker_.wake();  // whoever drives next goes on
  return true;
}

namespace {

// Lets each of the channels, or paths, move until the slice is spent. The first one that is left out begins
// the next turn. Returns whether more is to be done.
template <class Movers, class Move>
bool move_in_turn(Movers& movers, std::size_t& next, const Slice& slice, Move move) noexcept {
  const std::size_t count = movers.size(), first = next;
  bool more = false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (first + i) % count;
    if (slice.spent()) {
      next = at;
      return true;
    }
    more |= move(movers[at]);
  }
  return more;
}

}  // namespace

void ShmEndpoint::move_served() noexcept {
  more_ |= move_in_turn(served_, next_served_, services_.slice, [this](Served& served) {
    served.channel->move();
    if (served.channel->took_messages()) poll(*served.channel);
    return served.channel->pending();
  });
  drop_broken();
}

void ShmEndpoint::move_paths() noexcept {
  more_ |= move_in_turn(paths_, next_path_, services_.slice, [](ShmPath* path) {
    path->progress();
    return path->busy();
  });
}

void ShmEndpoint::continue_later() noexcept {
  more_ = true;
  waker_.wake();
}

bool ShmEndpoint::arm() noexcept {
  context_slot().sleeping.store(1, std::memory_order_seq_cst);  // whoever raises `work` rings, once
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !more_ && !someone_left_ && context_slot().work.load(std::memory_order_seq_cst) == 0 &&
         std::ranges::none_of(polled_,
                              [](const Channel* channel) { return channel && channel->messages_ready(); });
}

void ShmEndpoint::on_ready(std::uint32_t) noexcept {
  char rung[64];
  [[maybe_unused]] const auto got = ::read(doorbell_.get(), rung, sizeof rung);
  // The doorbell does not ring again for the same work, so it is done here.
  progress();
}

// A peer may write this memory, being of the same user, and cannot be kept from it. But nothing is served,
// and no message taken, that comes through a channel of a removed key.
void ShmEndpoint::end_removed_keys() noexcept {
  drop_served([](const Served& served) { return served.channel->session().sender().key_removed(); });
  for (ShmPath* path : paths_) path->end_if_key_removed();
}

void ShmEndpoint::forget(std::uint32_t index) noexcept {
  for (Served& served : served_) {
    served.channel->session().forget(index);
    served.channel->flush();
  }
  for (ShmPath* path : paths_) {
    if (!path->channel()) continue;
    path->channel()->session().forget(index);
    path->channel()->flush();
  }
}

// --- channels that others opened

// Whether the slot still shows the channel.
bool ShmEndpoint::stands(const Served& served) const noexcept {
  const AccessSlot& slot = domain_.segment.slots()[served.slot];
  return slot.channel_epoch.load(std::memory_order_acquire) == served.epoch &&
         slot.owner.load() == SlotOwner::pack(served.channel->peer().address().process);
}

// Takes in what is left in a channel whose initiator has gone: many slices, but no more than the channel
// holds now. Somebody may still write to it.
void ShmEndpoint::take_rest(Channel& channel) noexcept {
  constexpr std::size_t kSlicesOfMessages = kCells / Slice::kTransfers + 1;
  channel.note();
  for (bool all = false; !all;) {
    services_.slice.begin();
    all = channel.take_noted();
  }
  for (std::size_t i = 0; i < kSlicesOfMessages; ++i) {
    services_.slice.begin();
    channel.move();
    if (!channel.pending()) return;
  }
}

// Drops the channels that their initiators no longer show, with what is left in them.
void ShmEndpoint::drop_withdrawn() noexcept {
  drop_served([&](const Served& served) {
    if (stands(served)) return false;
    take_rest(*served.channel);
    return true;
  });
}

void ShmEndpoint::look_for_channels() noexcept {
  drop_withdrawn();
  accept_channels();
  // An initiator that comes back withdraws its former channel before it shows the next one, in another slot
  // perhaps, and both may have happened since the first look. Messages of the former one go first.
  drop_withdrawn();
}

void ShmEndpoint::accept_channels() noexcept {
  const std::uint32_t used = domain_.segment.slots_used();
  for (std::uint32_t i = 0; i < used; ++i) {
    AccessSlot& slot = domain_.segment.slots()[i];
    const std::uint32_t epoch = slot.channel_epoch.load(std::memory_order_acquire);
    const std::uint64_t owner = slot.owner.load();
    if (owner == 0 || (owner & SlotOwner::kClaiming) != 0 ||
        slot.channel_fd.load(std::memory_order_acquire) < 0 || slot.target_context != self_.context_slot)
      continue;
    if (std::ranges::any_of(served_, [&](const Served& served) { return served.slot == i; })) continue;
    try {
      Channel::Offer offer = Channel::open(slot, self_.context_slot, domain_.domain_id, services_.keys);
      // If the slot has changed meanwhile, the offer may mix two owners. The later one wakes this context.
      if (slot.owner.load() != owner || slot.channel_epoch.load() != epoch) continue;
      Part part{link_, offer.initiator_context, offer.initiator.encode()};
      auto peer = peer_domain(offer.initiator);
      looked_at_.reset();
      // The slot and the channel may be written by anybody; this only by the process that is named.
      if (!peer->has_made(offer.file, offer.published, offer.made)) continue;
      auto services = session_services(served_counts_, std::move(part), offer.key.index);
      services.sender->proven_with(offer.key.secret);
      // The session may ask for an announced message, and wait for it.
      services.on_output = [this] { expect_answers(); };
      // Nothing may fail after accept(): what was accepted is served.
      make_room(served_);
      served_.push_back(
          {i, epoch, Channel::accept(std::move(offer), std::move(peer), std::move(services), reader())});
    } catch (const OtherLayout& other) {
      // This reason is the only one that the claimant is told: it is no enemy, and would wait for nothing.
      slot.refused.store(std::uint64_t{epoch} << 32 | other.found(), std::memory_order_release);
    } catch (const std::exception&) {
      // The claimant is gone, shows no channel or has none of our keys, or something is lacking here. It gets
      // no answer: what it sent fails there at its deadline, and where more is lacking than now, it asks
      // again.
      continue;
    }
  }
}

// Drops the channels, and gives up the paths, of peers that have ended.
void ShmEndpoint::drop_lost() noexcept {
  someone_left_ = false;
  std::erase_if(left_, [](const auto& peer) { return peer->gone(); });
  drop_served([&](const Served& served) {
    if (!served.channel->peer().gone()) return false;
    take_rest(*served.channel);
    Segment::free_if_dead(domain_.segment.slots()[served.slot]);
    return true;
  });
  for (ShmPath* path : paths_) path->check(ticker_.attended(), std::chrono::nanoseconds::max());
}

// --- peers that do not answer

void ShmEndpoint::expect_answers() noexcept {
  ticker_.start(Liveness::look_period({domain_.options.peer_deadline}));
}

void ShmEndpoint::check_answers() noexcept {
  progress();  // what has arrived counts, even if it came while this process did not run
  const auto patience = Liveness::patience({domain_.options.peer_deadline}, false);
  bool owed = false;
  for (ShmPath* path : paths_) owed |= path->check(ticker_.attended(), patience);
  for (Served& served : served_) owed |= served.channel->check(ticker_.attended(), patience, false);
  drop_broken();
  if (!owed) ticker_.stop();
}

}  // namespace fab::shm

#include "providers/verbs/endpoint.h"

#include <sys/eventfd.h>

#include <algorithm>

#include "base/bytes/random.h"
#include "fabric/completion/event_queue.h"
#include "fabric/types/error.h"
#include "providers/verbs/route.h"
#include "providers/verbs/served.h"

namespace fab::verbs {
namespace {

constexpr Staging::Slots kStages{.small = 256, .large = 64};
constexpr int kBacklog = 1024;

}  // namespace

VerbsEndpoint::VerbsEndpoint(const Shared& shared, const EndpointServices& services, std::string link)
    : services_(services),
      shared_(shared),
      address_(shared.address),
      ticker_(services.poller, [this] { tick(); }),
      later_(services.poller, [this] { turn_links(); }),
      events_(open_event_channel(shared.device)),
      completions_(shared.device),
      shared_receives_(shared.receive_slots
                           ? std::make_unique<SharedReceives>(completions_, shared.device,
                                                              shared.stream_domain, shared.receive_slots)
                           : nullptr),
      device_events_(shared.device, services.poller, &completions_,
                     shared_receives_ ? &shared_receives_->queue() : nullptr, [this] { on_device_events(); }),
      queue_pair_ends_([this] {
        watch();
        return attended();
      }),
      calls_(check_call(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      exchanges_(shared.port ? std::make_unique<const Exchange::Services>(Exchange::Services{
                                   services.poller, shared.device, *shared.port, shared.transport,
                                   shared.services.options.peer_deadline,
                                   [this](const rdma_cm_event& event, std::string_view said) {
                                     on_event(event, said);
                                     calls_wait();
                                   }})
                             : nullptr),
      connections_{shared.device,  *events_,         completions_,
                   device_events_, queue_pair_ends_, shared_.transport,
                   to_connect_,    exchanges_.get(), [this] { calls_wait(); }},
      staging_(shared.device, shared.protection_domain, IBV_ACCESS_LOCAL_WRITE, kStages),
      memory_calls_(shared.by_exchange ? bounds().callers : CallQueue::kMost),
      stream_calls_(shared.by_exchange ? bounds().callers : CallQueue::kMost) {
  EndpointId of_no_key;  // where there is no key pair: tells this endpoint from others, and proves nothing
  fill_random(of_no_key.data(), of_no_key.size());
  identity_.keys = &services.keys;
  identity_.take_id(shared.services.key_pair->get(), std::move(link), services.context, of_no_key);
  shared_.by_exchange ? open_door() : listen();
  const EndpointAddress where{.id = identity_.id,
                              .kind = identity_.kind,
                              .network = this_network(),
                              .addresses = {address_},
                              .by_exchange = shared_.by_exchange};
  identity_.part.bytes = where.encode();
  on_cm_ = std::make_unique<ReadyCall>(services.poller, events_->fd, [this] { on_cm(false); });
  on_calls_ = std::make_unique<ReadyCall>(services_.poller, calls_.get(), [this] { take_calls(); });
  on_completions_ =
      std::make_unique<ReadyCall>(services.poller, completions_.notices(), [this] { on_completions(); });
  if (services.lingerers) services.lingerers->push_back(*this);
}

VerbsEndpoint::~VerbsEndpoint() {
  for (const auto& [id, link] : std::exchange(links_, {})) link->fail(Errc::canceled);
  for (const auto& served : std::exchange(served_, {})) served->stream.fail(Errc::canceled);
  destroyed_later_.destroy();
}

// What the peer's device has not acknowledged is lost with its queue pair: messages, and acks, without which
// the peer would take for lost what has been taken here.
bool VerbsEndpoint::lingers() noexcept {
  for (const auto& [id, link] : links_) link->stream().flush();
  for (const auto& served : served_) served->stream.flush();
  progress();
  return std::ranges::any_of(links_, [](const auto& entry) { return entry.second->stream().leaving(); }) ||
         std::ranges::any_of(served_, [](const auto& served) { return served->stream.leaving(); });
}

void VerbsEndpoint::listen() {
  rdma_cm_id* made = nullptr;
  if (library().create_id(events_.get(), &made, nullptr, RDMA_PS_TCP) != 0)
    refuse(shared_.device, "connections (is the module rdma_ucm loaded?)");
  listener_.reset(made);
  const SocketAddress any_port = address_.with_port(0);
  if (library().bind_addr(made, const_cast<sockaddr*>(any_port.get())) != 0 ||
      library().listen(made, kBacklog) != 0)
    refuse(shared_.device, "listening place on " + address_.host());
  address_ = address_.with_port(ntohs(library().get_src_port(made)));
}

// A context of a domain that listens on a port of the user's choice has the port after that of the one
// before.
void VerbsEndpoint::open_door() {
  if (address_.port() != 0) {
    if (address_.port() + services_.context > 65535)
      throw Error(Errc::invalid, "context " + std::to_string(services_.context) +
                                     " would listen on a port beyond 65535; choose a smaller one in "
                                     "verbs_listen");
    address_ = address_.with_port(static_cast<std::uint16_t>(address_.port() + services_.context));
  }
  const auto deadline = [this] {
    watch();
    return attended() + Liveness::handshake_time(deadlines());
  };
  door_ = std::make_unique<Door>(
      Door::Services{*exchanges_, shared_.services.security, [this] { return bounds(); }, deadline},
      address_);
  address_ = door_->listens_at();
}

Reach VerbsEndpoint::reaches(const Name& peer, std::uint16_t target, std::size_t) const {
  if (broken_) return {false, shared_.device.name + broken_};
  const Part* const part = peer.find(link(), target);
  if (!part) return {false, "the peer has no " + link() + " link"};
  const auto where = EndpointAddress::parse(part->bytes);
  if (!where) return {false, "the peer's name holds no verbs part of a version that this library reads"};
  const std::string there = where->addresses.front().text();
  if (const auto route = find_route(*where, shared_.ways()))
    return {true, std::string("RDMA by ") + shared_.device.name + " to " + route->to.text() +
                      (route->by_exchange ? " (by exchange)" : "")};
  if (where->by_exchange)
    return {false, shared_.port ? "no route to " + there + ", where the peer takes exchanges"
                                : shared_.device.name + " is reached by IP addresses only, and the peer at " +
                                      there + " by exchange"};
  if (shared_.by_exchange)
    return {false, shared_.device.name + " connects by exchange, and the peer by the RDMA address " + there +
                       "; pass verbs_connect=\"exchange\" there too"};
  return {false, "no route from " + address_.host() + " to the RDMA address " + there};
}

std::unique_ptr<Path> VerbsEndpoint::connect(PeerId id, const Name& peer, std::uint16_t target,
                                             std::size_t key) {
  if (const Reach reach = reaches(peer, target, key); !reach.ok)
    throw Error(Errc::unreachable,
                "peer " + std::to_string(id) + " cannot be reached over verbs: " + reach.why);
  const Part& part = *peer.find(link(), target);
  const EndpointAddress where =
      EndpointAddress::parse(part.bytes).value_or(EndpointAddress{});  // reaches() read it
  std::shared_ptr<VerbsLink> link;
  if (const auto known = links_.find({part.bytes, key}); known != links_.end()) {
    link = known->second;
    link->known_as(id);
  } else {
    link = std::make_shared<VerbsLink>(*this, part, where, key);
    auto path = std::make_unique<VerbsPath>(link, this->link());
    link->place = &links_.emplace(LinkKey(part.bytes, key), link).first->first;
    link->known_as(id);
    link->call();
    return path;
  }
  return std::make_unique<VerbsPath>(std::move(link), this->link());
}

void VerbsEndpoint::retire(VerbsLink& link) noexcept {
  decltype(turns_)::erase(link.stream());
  decltype(pumps_)::erase(link);
  if (!link.place) return;
  const auto at = links_.find(*std::exchange(link.place, nullptr));
  if (at == links_.end()) return;
  if (at == next_tick_) ++next_tick_;
  destroy_later(std::move(at->second));
  links_.erase(at);
}

// --- completions

bool VerbsEndpoint::take_turns() noexcept {
  if (turns_.empty() && pumps_.empty()) return false;
  bool moved = false;
  while (!turns_.empty() && !services_.slice.spent()) {
    turns_.pop_front().end_turn();
    moved = true;
  }
  LinkedList<VerbsLink, LinkPumps> now;  // links that are added meanwhile wait for the next turn
  now.take(pumps_);
  while (!now.empty()) moved |= now.pop_front().pump();
  return moved || !turns_.empty() || !pumps_.empty();
}

bool VerbsEndpoint::progress() noexcept {
  if (destroyed_later_.empty()) return poll_and_turn();
  DestroyedLaterList dead = std::move(destroyed_later_);  // destroyed after the polls of this turn
  const bool moved = poll_and_turn();
  dead.destroy();
  return moved;
}

bool VerbsEndpoint::poll_and_turn() noexcept {
  constexpr int kAtOnce = DeviceCompletionQueue::kPollAtOnce;
  int count = kAtOnce;
  bool moved = false;
  while (count >= kAtOnce && !services_.slice.spent()) moved |= (count = completions_.poll()) != 0;
  if (count < kAtOnce && !queue_pair_ends_.empty()) queue_pair_ends_.drained();
  return take_turns() || moved;
}

bool VerbsEndpoint::arm() noexcept { return !take_turns() && completions_.arm(); }

void VerbsEndpoint::on_completions() noexcept {
  completions_.take_notices();
  progress();
}

void VerbsEndpoint::turn_links() noexcept {
  for (const auto& [id, link] : links_) turn_later(*link);
  take_turns();
}

void VerbsEndpoint::on_device_events() noexcept {
  const std::uint32_t news = device_events_.take();
  if (news & EndpointEvents::device_failed) {
    on_completions_->end();  // the descriptors of a removed device stay ready
    fail_all(" has failed or was removed; open a new domain once it is there again");
  }
  if (news & EndpointEvents::queue_failed)
    fail_all(" has failed a queue of this endpoint; open another endpoint");
  const auto tell = [&](std::uint32_t bit, EventType type, Errc error) {
    if (news & bit)
      services_.events.tell_lost({.type = type, .error = error, .peer = kNoPeer, .link = link()});
  };
  tell(EndpointEvents::port_down, EventType::link_down, Errc::unreachable);
  tell(EndpointEvents::port_up, EventType::link_up, Errc::ok);
  tell(EndpointEvents::address_changed, EventType::address_changed, Errc::ok);
  device_events_.visit();
  progress();
}

// What the device holds does not end by itself any more.
void VerbsEndpoint::fail_all(const char* why) noexcept {
  broken_ = why;
  for (next_tick_ = links_.begin(); next_tick_ != links_.end();)
    (next_tick_++)->second->fail(Errc::peer_lost);
  visit_served([](VerbsStream& stream) { stream.fail(Errc::peer_lost); });
  for (CallQueue* const queue : {&memory_calls_, &stream_calls_})
    while (const auto call = queue->take_older(Clock::now()))
      Connection::refuse(*call->id, Refusal::Why::never);
  queue_pair_ends_.give_up();
}

void VerbsEndpoint::turn_later(VerbsStream& stream) noexcept {
  if (stream.state() == Errc::ok) turns_.push_back(stream);
}

void VerbsEndpoint::turn_later(VerbsLink& link) noexcept {
  if (link.state() == Errc::ok) pumps_.push_back(link);
}

void VerbsEndpoint::forget(std::uint32_t region) noexcept {
  for (const auto& [id, link] : links_) link->stream().forget(region);
  for (const auto& served : served_) served->stream.forget(region);
}

void VerbsEndpoint::end_removed_keys() noexcept {
  // Each may be taken out of the links as by a tick, and others with it.
  for (next_tick_ = links_.begin(); next_tick_ != links_.end();)
    (next_tick_++)->second->stream().end_if_key_removed();
  visit_served([](VerbsStream& stream) { stream.end_if_key_removed(); });
}

void VerbsEndpoint::watch() noexcept {
  if (!ticker_.running()) ticker_.start(Liveness::look_period(deadlines()));
}

void VerbsEndpoint::tick() noexcept {
  // Everything that has arrived counts as a sign of life, even if it came while this process did not run.
  on_cm(true);
  services_.slice.begin();  // reading that may have spent it
  progress();
  turn_away();
  calls_wait();
  bool more = door_ && door_->tick(attended());
  more |= queue_pair_ends_.tick(attended()) || !memory_calls_.empty() || !stream_calls_.empty();
  // A tick may end its own link and others. None is destroyed before the next progress().
  for (next_tick_ = links_.begin(); next_tick_ != links_.end();) more |= (next_tick_++)->second->tick();
  visit_served([&](VerbsStream& stream) { more |= stream.tick(); });
  take_turns();
  if (!more) ticker_.stop();
}

}  // namespace fab::verbs

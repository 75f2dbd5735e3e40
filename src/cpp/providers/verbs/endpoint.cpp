#include "providers/verbs/endpoint.h"

#include <algorithm>
#include <climits>

#include "base/bytes/random.h"
#include "base/deadline.h"
#include "fabric/admission/guest_session.h"
#include "fabric/completion/event_queue.h"
#include "fabric/types/error.h"
#include "providers/verbs/route.h"

namespace fab::verbs {
namespace {

constexpr std::int32_t kStages = 256;
constexpr int kBacklog = 1024;
constexpr std::size_t kMostServed = 65536, kMostOfOneStranger = kMostServed / 4 * 3;
constexpr std::chrono::milliseconds kLinger(200);  // docs/messages.md

}  // namespace

// A stream of a peer that has called, and the connection by which that peer's device reaches memory here.
// That connection needs no attention until it ends.
struct VerbsEndpoint::Served final : public ConnectionOwner, public DestroyedLater, public Guest {
  explicit Served(VerbsEndpoint& of)
      : endpoint(of),
        stream(of, {.on_open = [this] { endpoint.welcome(*this); },
                    .on_turn = [] {},
                    .on_failed = [this](Errc) { endpoint.release(*this); }}) {}
  void serve_memory(OwnId id, const rdma_conn_param& asked) {
    memory = std::make_unique<Connection>(endpoint.connections(), *this,
                                          Connection::Depth{1, 0, 0, endpoint.shared().protection_domain});
    if (!memory->answer(std::move(id), asked)) memory.reset();
  }
  void on_connected() noexcept override {}
  void on_closed(Errc) noexcept override { memory.reset(); }
  void on_completion(const ibv_wc&) noexcept override {}

  // As a guest, and as a caller before. What the peer's device does in the memory here is not seen.
  std::uint64_t heard() const noexcept override { return stream.received(); }
  bool has_spoken() const noexcept override {
    return stream.open() ? stream.session()->incoming().frames() != 0 || memory : stream.received() != 0;
  }
  Work work() noexcept override {
    if (!stream.open()) return Work::none;
    if (memory) return proven() ? Work::moving : Work::stalled;
    return work_of(*stream.session(), stream.pace());
  }
  bool proven() noexcept override { return stream.open() && stream.session()->sender().proven(); }
  int descriptor() const noexcept override { return INT_MAX; }  // none
  void evict(const char* why) noexcept override {
    const bool stood = stream.open();
    endpoint.note(stood ? SecurityEvent::limit : SecurityEvent::caller_dropped, stream.where(), why);
    stream.fail(Errc::peer_lost);
  }

  VerbsEndpoint& endpoint;
  VerbsStream stream;
  std::unique_ptr<Connection> memory;
  bool stands = false;  // among the guests, and not among the callers any more
};

VerbsEndpoint::VerbsEndpoint(const Shared& shared, const EndpointServices& services, std::string link)
    : services_(services),
      shared_(shared),
      address_(shared.address),
      ticker_(services.poller, [this] { tick(); }),
      events_(open_event_channel(shared.device)),
      completions_(shared.device),
      shared_receives_(shared.receive_slots
                           ? std::make_unique<SharedReceives>(completions_, shared.device,
                                                              shared.stream_domain, shared.receive_slots)
                           : nullptr),
      device_events_(shared.device, services.poller, completions_.queue(),
                     shared_receives_ ? &shared_receives_->queue() : nullptr, [this] { on_device_events(); }),
      queue_pair_ends_([this] {
        watch();
        return attended();
      }),
      connections_{shared.device,  *events_,         completions_,
                   device_events_, queue_pair_ends_, shared_.transport},
      staging_(kStages) {
  staging_.enroll(shared.device, shared.protection_domain);

  EndpointId of_no_key;  // where there is no key pair: tells this endpoint from others, and proves nothing
  fill_random(of_no_key.data(), of_no_key.size());
  identity_.keys = &services.keys;
  identity_.take_id(shared.services.key_pair->get(), std::move(link), services.context, of_no_key);
  listen();
  const EndpointAddress where{
      .id = identity_.id, .kind = identity_.kind, .network = this_network(), .addresses = {address_}};
  identity_.part.bytes = where.encode();
  on_cm_ = std::make_unique<ReadyCall>(services.poller, events_->fd, [this] { on_cm(); });
  on_completions_ =
      std::make_unique<ReadyCall>(services.poller, completions_.notices(), [this] { on_completions(); });
}

VerbsEndpoint::~VerbsEndpoint() {
  // A message that the peer's device has not acknowledged is lost with its queue pair, so the endpoint
  // lingers.
  const auto deadline = Deadline::in(kLinger);
  const auto busy = [this] {
    bool any = false;
    for (const auto& [id, link] : links_) any |= link->stream().leaving();
    return any;
  };
  while (busy() && !deadline.passed()) {
    services_.slice.begin();
    for (const auto& [id, link] : links_) link->stream().flush();
    completions_.poll();
    take_turns();
  }
  for (const auto& [id, link] : std::exchange(links_, {})) link->fail(Errc::canceled);
  for (const auto& served : std::exchange(served_, {})) served->stream.fail(Errc::canceled);
  destroyed_later_.destroy();
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

Reach VerbsEndpoint::reaches(const Name& peer, std::uint16_t target, std::size_t) const {
  if (broken_) return {false, shared_.device.name + broken_};
  const Part* const part = peer.find(link(), target);
  if (!part) return {false, "the peer has no " + link() + " link"};
  const auto where = EndpointAddress::parse(part->bytes);
  if (!where) return {false, "the peer's name holds no verbs part of a version that this library reads"};
  if (const auto route = find_route(*where, address_))
    return {true, std::string("RDMA by ") + shared_.device.name + " to " + route->text()};
  return {false,
          "no route from " + address_.host() + " to the RDMA address " + where->addresses.front().text()};
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
    links_.emplace(std::pair(part.bytes, key), link);
    link->known_as(id);
    link->call();
    return path;
  }
  return std::make_unique<VerbsPath>(std::move(link), this->link());
}

// --- connections

void VerbsEndpoint::on_cm() noexcept {
  rdma_cm_event* event = nullptr;
  while (library().get_cm_event(events_.get(), &event) == 0) {
    const rdma_cm_event_type type = event->event;
    rdma_cm_id* const id = event->id;
    rdma_conn_param asked = event->param.conn;
    // A copy of the private data, which goes when the event is acknowledged. Its length has 8 bits.
    char said[256];
    std::size_t length = 0;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST && asked.private_data)
      length = std::string_view(static_cast<const char*>(asked.private_data), asked.private_data_len)
                   .copy(said, sizeof said);
    library().ack_cm_event(event);
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      on_call(OwnId(id), asked, {said, length});
      continue;
    }
    auto* const connection = static_cast<Connection*>(id->context);
    if (!connection) continue;
    const std::uint32_t number = connection->work_number();
    // Messages from before the end are still to be read. That may destroy the connection.
    if (type == RDMA_CM_EVENT_DISCONNECTED)
      while (completions_.poll() != 0) {
      }
    if (completions_.owners().find(number)) connection->on_event(type);
  }
}

void VerbsEndpoint::on_call(OwnId id, const rdma_conn_param& asked, std::string_view said) noexcept try {
  id->context = nullptr;
  const auto data = PrivateData::decode(said);
  const auto reject = [&] { library().reject(id.get(), nullptr, 0); };
  if (broken_ || !data || data->to != identity_.id) return reject();
  if (data->purpose == PrivateData::Purpose::memory) {
    const auto found = std::ranges::find_if(served_, [&](const auto& served) {
      return served->stream.open() && served->stream.token() == data->token;
    });
    if (found == served_.end()) return reject();
    (*found)->serve_memory(std::move(id), asked);
    return;
  }
  Bounds bounds = this->bounds();
  bounds.guests = bounds.callers;
  bounds.guests_of_one = bounds.callers_of_one;
  const std::string source = source_of({&id->route.addr.dst_addr, sizeof id->route.addr.dst_storage});
  if (!callers_.make_room(source, false, bounds)) return reject();
  auto served = std::make_shared<Served>(*this);
  served_.push_back(served);
  callers_.add(*served, source);
  if (const Errc error = served->stream.answer(std::move(id), asked); error != Errc::ok)
    served->stream.fail(error);
} catch (const std::exception&) {
  return;  // memory ran out; destroying the id rejects the caller
}

Bounds VerbsEndpoint::bounds() const noexcept {
  const bool keyed = !services_.keys.front().secret.empty();
  Bounds bounds = Bounds::of(INT_MAX, keyed);  // calls and streams need no descriptors
  bounds.guests = kMostServed;
  bounds.guests_of_one = keyed ? kMostServed : kMostOfOneStranger;
  return bounds;
}

// The handshake is done, and the caller becomes a guest.
void VerbsEndpoint::welcome(Served& served) noexcept try {
  const std::string source = served.source();
  callers_.remove(served);
  served.stands = true;
  if (!guests_.make_room(source, served.proven(), bounds())) return served.stream.fail(Errc::peer_lost);
  guests_.add(served, source);
} catch (const std::bad_alloc&) {
  served.stream.fail(Errc::no_memory);
}

void VerbsEndpoint::note(SecurityEvent event, const EndpointAddress& peer, const char* what) const noexcept
    try {
  shared_.services.security.note(event, peer.addresses.empty() ? "a caller" : peer.addresses.front().host(),
                                 what);
} catch (const std::bad_alloc&) {
  return;
}

void VerbsEndpoint::supersede(const VerbsStream& by) noexcept {
  visit_served([&](VerbsStream& stream) {
    if (&stream != &by && stream.open() && stream.proven() && stream.where().id == by.where().id &&
        stream.key() == by.key())
      stream.fail(Errc::peer_lost);
  });
}

template <class Visit>
void VerbsEndpoint::visit_served(Visit visit) noexcept {
  for (std::size_t i = served_.size(); i-- > 0;)
    if (i < served_.size()) visit(served_[i]->stream);
}

void VerbsEndpoint::release(Served& served) noexcept {
  served.memory.reset();
  (served.stands ? guests_ : callers_).remove(served);
  decltype(turns_)::erase(served.stream);
  const auto found = std::ranges::find(served_, &served, [](const auto& owned) { return owned.get(); });
  if (found == served_.end()) return;
  destroy_later(std::move(*found));
  served_.erase(found);
}

void VerbsEndpoint::retire(VerbsLink& link) noexcept {
  decltype(turns_)::erase(link.stream());
  decltype(pumps_)::erase(link);
  const auto at =
      std::ranges::find_if(links_, [&](const auto& entry) { return entry.second.get() == &link; });
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
  while (count == kAtOnce && !services_.slice.spent()) moved |= (count = completions_.poll()) != 0;
  if (count != kAtOnce && !queue_pair_ends_.empty()) queue_pair_ends_.drained();
  return take_turns() || moved;
}

bool VerbsEndpoint::arm() noexcept { return !take_turns() && completions_.arm(); }

void VerbsEndpoint::on_completions() noexcept {
  completions_.take_notices();
  progress();
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
  on_cm();
  progress();
  bool more = queue_pair_ends_.tick(attended());
  // A tick may end its own link and others. None is destroyed before the next progress().
  for (next_tick_ = links_.begin(); next_tick_ != links_.end();) more |= (next_tick_++)->second->tick();
  visit_served([&](VerbsStream& stream) { more |= stream.tick(); });
  take_turns();
  if (!more) ticker_.stop();
}

}  // namespace fab::verbs

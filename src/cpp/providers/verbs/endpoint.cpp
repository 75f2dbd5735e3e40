#include "providers/verbs/endpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/bytes/random.h"
#include "fabric/types/error.h"

namespace fab::verbs {
namespace {

constexpr std::uint32_t kFirstRoom = 16384;  // completions
constexpr std::int32_t kStages = 256;
constexpr int kBacklog = 1024;
constexpr int kPollAtOnce = 32;
constexpr std::size_t kMostServed = 65536;
constexpr std::ptrdiff_t kMostStrangers = 128;  // callers that have not finished their handshake
constexpr unsigned kAcknowledgeAt = 64;
constexpr std::chrono::milliseconds kLinger(200);  // docs/messages.md

void make_nonblocking(int fd) {
  check_call(::fcntl(fd, F_SETFL, check_call(::fcntl(fd, F_GETFL), "fcntl") | O_NONBLOCK), "fcntl");
  check_call(::fcntl(fd, F_SETFD, FD_CLOEXEC), "fcntl");
}

}  // namespace

// A stream that was called, and the connection by which the caller's device reaches memory here: it needs
// nobody's attention until it ends.
struct VerbsEndpoint::Served final : public Connection::Owner, public DestroyedLater {
  explicit Served(VerbsEndpoint& of)
      : endpoint(of),
        stream(of,
               {.on_open = [] {}, .on_turn = [] {}, .on_failed = [this](Errc) { endpoint.release(*this); }}) {
  }
  void serve_memory(OwnId id, const rdma_conn_param& asked) {
    memory = std::make_unique<Connection>(endpoint, *this,
                                          Connection::Depth{1, 0, 0, endpoint.protection_domain()});
    if (!memory->answer(std::move(id), asked)) memory.reset();
  }
  void on_connected() noexcept override {}
  void on_closed(Errc) noexcept override { memory.reset(); }
  void on_completion(const ibv_wc&) noexcept override {}

  VerbsEndpoint& endpoint;
  VerbsStream stream;
  std::unique_ptr<Connection> memory;
};

VerbsEndpoint::VerbsEndpoint(const DomainServices& domain, const EndpointServices& services,
                             const Shared& shared, std::string link)
    : domain_(domain),
      services_(services),
      shared_(shared),
      max_message_(std::clamp<std::uint64_t>(shared.device.max_message, 4096, 1u << 30)),
      address_(shared.address),
      ticker_(services.poller, [this] { tick(); }) {
  const Device& device = shared.device;
  events_.reset(library().create_event_channel());
  if (!events_) refuse(device, "connection events");
  make_nonblocking(events_->fd);
  notices_.reset(library().create_comp_channel(device.context));
  if (!notices_) refuse(device, "completion events");
  make_nonblocking(notices_->fd);
  room_ = std::min<std::uint32_t>(kFirstRoom, static_cast<std::uint32_t>(device.limits.max_cqe));
  queue_.reset(library().create_cq(device.context, static_cast<int>(room_), nullptr, notices_.get(), 0));
  if (!queue_) refuse(device, "completion queue");
  room_ = static_cast<std::uint32_t>(queue_->cqe);
  staging_ = Mapping::anonymous(kStages * kStageBytes);
  staging_key_.reset(
      library().reg_mr(&shared.protection_domain, staging_.data(), staging_.size(), IBV_ACCESS_LOCAL_WRITE));
  if (!staging_key_) refuse(device, "access to memory");
  for (std::int32_t slot = kStages; slot-- > 0;) free_stages_.push_back(slot);
  if (shared.receive_slots)
    shared_receives_ = std::make_unique<SharedReceives>(*this, device, shared.receive_slots);

  fill_random(identity_.id.data(), identity_.id.size());
  identity_.keys = &services.keys;
  listen();
  const EndpointAddress where{.id = identity_.id, .network = this_network(), .addresses = {address_}};
  identity_.part = {std::move(link), services.context, where.encode()};
  on_cm_ = std::make_unique<ReadyCall>(services.poller, events_->fd, [this] { on_cm(); });
  on_completions_ = std::make_unique<ReadyCall>(services.poller, notices_->fd, [this] { on_completions(); });
}

VerbsEndpoint::~VerbsEndpoint() {
  // What was handed to the device and not acknowledged is lost with its queue pair.
  const auto deadline = Deadline::in(kLinger);
  const auto busy = [this] {
    bool any = false;
    for (const auto& [id, link] : links_) any |= link->stream().leaving();
    return any;
  };
  while (busy() && !deadline.passed()) {
    services_.slice.begin();
    for (const auto& [id, link] : links_) link->stream().flush();
    poll();
    take_turns();
  }
  for (const auto& [id, link] : std::exchange(links_, {})) link->fail(Errc::canceled);
  for (const auto& served : std::exchange(served_, {})) served->stream.fail(Errc::canceled);
  while (to_destroy_) destroy(std::move(to_destroy_));
  if (unacknowledged_) library().ack_cq_events(queue_.get(), unacknowledged_);
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

std::uint8_t VerbsEndpoint::reads_served() const noexcept {
  return static_cast<std::uint8_t>(std::clamp(shared_.device.limits.max_qp_rd_atom, 1, 128));
}

std::uint8_t VerbsEndpoint::reads_begun() const noexcept {
  return static_cast<std::uint8_t>(std::clamp(shared_.device.limits.max_qp_init_rd_atom, 1, 128));
}

namespace {

std::optional<SocketAddress> find_route(const EndpointAddress& peer, const SocketAddress& from) {
  for (const SocketAddress& address : peer.addresses)
    if (address.v6() == from.v6() && !address.wildcard() && !address.loopback() && has_route(address))
      return address;
  return {};
}

}  // namespace

std::optional<SocketAddress> VerbsEndpoint::route_to(const EndpointAddress& peer) const noexcept try {
  return find_route(peer, address_);
} catch (const std::exception&) {
  return {};
}

Reach VerbsEndpoint::reaches(const Name& peer, std::uint16_t target, std::size_t) const {
  const Part* const part = peer.find(link(), target);
  if (!part) return {false, "the peer has no " + link() + " link"};
  const auto where = EndpointAddress::parse(part->bytes);
  if (!where) return {false, "the peer's name holds no valid verbs part"};
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
  if (const auto known = links_.find({where.id, key}); known != links_.end()) {
    link = known->second;
    link->known_as(id);
  } else {
    link = std::make_shared<VerbsLink>(*this, part, where, key);
    auto path = std::make_unique<VerbsPath>(link, this->link());
    links_.emplace(std::pair(where.id, key), link);
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
    char said[256];  // the event's own goes when it is acknowledged; its length is of 8 bits
    std::size_t length = 0;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST && asked.private_data)
      length = std::string_view(static_cast<const char*>(asked.private_data), asked.private_data_len)
                   .copy(said, sizeof said);
    library().ack_cm_event(event);
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      on_call(OwnId(id), asked, {said, length});
      continue;
    }
    // What came before the end is still to be read.
    auto* const connection = static_cast<Connection*>(id->context);
    if (!connection) continue;
    const std::uint32_t number = connection->work_number();
    if (type == RDMA_CM_EVENT_DISCONNECTED)
      while (poll() != 0) {
      }
    if (owners_.contains(number)) connection->on_event(type);
  }
}

void VerbsEndpoint::on_call(OwnId id, const rdma_conn_param& asked, std::string_view said) noexcept try {
  id->context = nullptr;
  const auto data = PrivateData::decode(said);
  const auto reject = [&] { library().reject(id.get(), nullptr, 0); };
  if (!data || data->to != identity_.id || served_.size() >= kMostServed) return reject();
  if (data->purpose == PrivateData::Purpose::memory) {
    const auto found = std::ranges::find_if(served_, [&](const auto& served) {
      return served->stream.open() && served->stream.token() == data->token;
    });
    if (found == served_.end()) return reject();
    (*found)->serve_memory(std::move(id), asked);
    return;
  }
  const auto strangers =
      std::ranges::count_if(served_, [](const auto& served) { return !served->stream.open(); });
  if (strangers >= kMostStrangers) return reject();
  auto served = std::make_shared<Served>(*this);
  served_.push_back(served);
  if (const Errc error = served->stream.answer(std::move(id), asked); error != Errc::ok)
    served->stream.fail(error);
} catch (const std::exception&) {
  return;  // no memory for one more: the caller finds itself rejected
}

void VerbsEndpoint::supersede(const VerbsStream& by) noexcept {
  visit_served([&](VerbsStream& stream) {
    if (&stream != &by && stream.open() && stream.where().id == by.where().id && stream.key() == by.key())
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

std::uint32_t VerbsEndpoint::add_owner(Connection::Owner& owner) {
  while (next_number_ == 0 || owners_.contains(next_number_)) ++next_number_;
  owners_.emplace(next_number_, &owner);
  return next_number_++;
}

bool VerbsEndpoint::take_room(std::uint32_t entries) noexcept {
  if (room_taken_ + entries > room_) {
    const auto most = static_cast<std::uint32_t>(shared_.device.limits.max_cqe);
    const std::uint32_t wanted = std::max(std::min(2 * room_, most), room_taken_ + entries);
    if (library().resize_cq(queue_.get(), static_cast<int>(wanted)) != 0) return false;
    room_ = static_cast<std::uint32_t>(queue_->cqe);
    if (room_taken_ + entries > room_) return false;
  }
  room_taken_ += entries;
  return true;
}

std::int32_t VerbsEndpoint::take_stage() noexcept {
  const std::int32_t slot = free_stages_.back();
  free_stages_.pop_back();
  return slot;
}

Connection::Owner* VerbsEndpoint::owner(std::uint32_t number) noexcept {
  if (number != recent_.first) {
    const auto found = owners_.find(number);
    if (found == owners_.end()) return nullptr;
    recent_ = *found;
  }
  return recent_.second;
}

int VerbsEndpoint::poll() noexcept {
  ibv_wc completions[kPollAtOnce];
  const int count = ibv_poll_cq(queue_.get(), kPollAtOnce, completions);
  for (int i = 0; i < count; ++i)
    if (Connection::Owner* const to = owner(static_cast<std::uint32_t>(completions[i].wr_id >> 32)))
      to->on_completion(completions[i]);
  return std::max(count, 0);
}

bool VerbsEndpoint::take_turns() noexcept {
  if (turns_.empty() && pumps_.empty()) return false;
  bool moved = false;
  while (!turns_.empty() && !services_.slice.spent()) {
    turns_.pop_front().end_turn();
    moved = true;
  }
  LinkedList<VerbsLink, LinkPumps> now;  // what comes meanwhile is for the next turn
  now.take(pumps_);
  while (!now.empty()) moved |= now.pop_front().pump();
  return moved || !turns_.empty() || !pumps_.empty();
}

bool VerbsEndpoint::progress() noexcept {
  if (!to_destroy_) return poll_and_turn();
  std::shared_ptr<DestroyedLater> dead = std::move(to_destroy_);  // after the polls of this turn
  const bool moved = poll_and_turn();
  destroy(std::move(dead));
  return moved;
}

// Each is destroyed before the next one: a chain that destroyed itself would do so by recursion.
void VerbsEndpoint::destroy(std::shared_ptr<DestroyedLater> dead) noexcept {
  while (dead) dead = std::move(dead->next);
}

bool VerbsEndpoint::poll_and_turn() noexcept {
  int count = kPollAtOnce;
  bool moved = false;
  while (count == kPollAtOnce && !services_.slice.spent()) moved |= (count = poll()) != 0;
  return take_turns() || moved;
}

bool VerbsEndpoint::arm() noexcept {
  if (take_turns()) return false;
  if (!armed_) {
    if (ibv_req_notify_cq(queue_.get(), 0) != 0) return false;
    armed_ = true;
    // What came before this is not told of.
    if (poll() != 0) return false;
  }
  return true;
}

void VerbsEndpoint::on_completions() noexcept {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (library().get_cq_event(notices_.get(), &queue, &context) == 0)
    if (++unacknowledged_ >= kAcknowledgeAt)
      library().ack_cq_events(queue_.get(), std::exchange(unacknowledged_, 0));
  armed_ = false;
  progress();
}

void VerbsEndpoint::turn_later(VerbsStream& stream) noexcept {
  if (stream.state() == Errc::ok) turns_.push_back(stream);
}

void VerbsEndpoint::pump_later(VerbsLink& link) noexcept {
  if (link.state() == Errc::ok) pumps_.push_back(link);
}

void VerbsEndpoint::forget(std::uint32_t region) noexcept {
  for (const auto& [id, link] : links_) link->stream().forget(region);
  for (const auto& served : served_) served->stream.forget(region);
}

void VerbsEndpoint::watch() noexcept { ticker_.start(Liveness::look_period(deadlines())); }

void VerbsEndpoint::tick() noexcept {
  // What has arrived counts, also what came while this process did not run.
  on_cm();
  progress();
  bool more = false;
  // They, and others, may end on the way; none is destroyed before the next progress().
  for (next_tick_ = links_.begin(); next_tick_ != links_.end();) more |= (next_tick_++)->second->tick();
  visit_served([&](VerbsStream& stream) { more |= stream.tick(); });
  take_turns();
  if (!more) ticker_.stop();
}

}  // namespace fab::verbs

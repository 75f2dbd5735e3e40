#include "providers/tcp/endpoint.h"

#include <algorithm>
#include <system_error>

#include "base/bytes/random.h"
#include "base/network/interfaces.h"
#include "base/process/identity.h"
#include "fabric/address_vector/socket_name.h"
#include "providers/tcp/path.h"

namespace fab::tcp {
namespace {

constexpr std::size_t kMostVersions = 1024;  // of peers that speak others, until the next connect() to them
constexpr unsigned kMostIdlePolls = 100;     // in a row, of a stream that is polled directly
// One turn in so many belongs to the poller, however busy the streams are that are polled directly.
constexpr unsigned kPollerTurn = 16;

// The addresses that peers are told. A wildcard stands for all addresses of the machine. While the interface
// has no address yet, peers are told the wildcard itself: they cannot call it, so this side calls them.
std::vector<SocketAddress> advertised(const SocketAddress& bound, const std::string& absent) {
  if (!bound.wildcard() || !absent.empty()) return {bound};
  std::vector<SocketAddress> all;
  for (const Interface& interface : list_interfaces())
    for (const SocketAddress& address : interface.addresses)
      if (interface.up && address.v6() == bound.v6() && all.size() < 64)
        all.push_back(address.with_port(bound.port()));
  return all;
}

// Whose loopback addresses these are; of nobody where none is one, which leaves room in short names.
std::array<std::uint8_t, 16> network_of(const std::vector<SocketAddress>& addresses) {
  const bool any = std::ranges::any_of(
      addresses, [](const SocketAddress& address) { return address.loopback() || address.wildcard(); });
  return any ? this_network() : std::array<std::uint8_t, 16>{};
}

// The id of an endpoint that has no key pair, or does not use it: with a port that the user chose, an
// endpoint that is opened there again has the same id. Otherwise every endpoint has an id of its own.
EndpointId address_id(const SocketAddress& wanted) {
  EndpointId id;
  if (wanted.port() == 0) {
    fill_random(id.data(), id.size());
  } else {
    const Digest digest = sha256("pyfab tcp endpoint " + network_identity() + " " + wanted.text());
    std::copy_n(digest.begin(), id.size(), id.begin());
  }
  return id;
}

Part name_of(const SocketAddress& address) { return {std::string(kSocketLink), 0, pack(address)}; }

// What the address vector may know a peer by that this side calls: its part of a bundle, or an address where
// it listens.
std::vector<Part> names_of(const Part& part, const EndpointAddress& where) {
  std::vector<Part> names{part};
  if (part.link != kSocketLink)
    for (const SocketAddress& address : where.addresses) names.push_back(name_of(address));
  return names;
}

// What the address vector may know a caller by. Where it listens does not count, because nothing proves it.
std::vector<Part> names_of(const IncomingConnection& caller) {
  const Part& part = caller.hello().part;
  return {caller.proven() ? part : Part{part.link, 0, {}}};
}

// A peer has been found there, too.
void add_names(Sender& peer, const EndpointAddress& where) {
  for (const SocketAddress& address : where.addresses) peer.also_named(name_of(address));
}

std::string text_of(WireVersions versions) {
  return std::to_string(versions.lowest) + "-" + std::to_string(versions.highest);
}

}  // namespace

TcpEndpoint::TcpEndpoint(const DomainServices& domain, const EndpointServices& services, std::string link,
                         const SocketAddress& listen, const std::string& absent)
    : domain_(domain),
      services_(services),
      reception_(*this, listen, absent),
      ticker_(services.poller, [this] { tick(); }) {
  identity_.keys = &services.keys;
  identity_.by_address = true;
  identity_.encrypts = domain.options.encrypt;
  identity_.kernel_tls = domain.options.chosen("tcp_kernel_tls", "off", "on");
  identity_.take_id(listen.port() == 0 ? domain.key_pair->get() : nullptr, std::move(link), services.context,
                    address_id(listen));
  if (!identity_.key_pair) identity_.show(domain.key_pair->get());
  auto addresses = advertised(reception_.listens_at(), absent);
  identity_.part.bytes = EndpointAddress{.id = identity_.id,
                                         .kind = identity_.kind,
                                         .network = network_of(addresses),
                                         .addresses = std::move(addresses)}
                             .encode();
  if (services.lingerers) services.lingerers->push_back(*this);
}

TcpEndpoint::~TcpEndpoint() {
  for (const auto& [place, stream] : streams_) stream->detach(Errc::canceled);
}

bool TcpEndpoint::lingers() noexcept {
  bool any = false;
  for (const auto& [place, stream] : streams_)
    if (place.peer != identity_.id) any |= stream->lingers();
  return any;
}

std::vector<SocketAddress> TcpEndpoint::routes_to(const EndpointAddress& peer) {
  std::vector<SocketAddress> routes;
  const bool here = peer.network == this_network();
  for (const SocketAddress& address : peer.addresses)
    if (!address.wildcard() && (address.loopback() ? here : has_route(address))) routes.push_back(address);
  std::ranges::stable_sort(routes, {}, [](const SocketAddress& address) { return !address.loopback(); });
  return routes;
}

std::vector<std::string> TcpEndpoint::socket_names() const {
  std::vector<std::string> names;
  if (const auto where = EndpointAddress::parse(identity_.part.bytes))
    for (const SocketAddress& address : where->addresses) names.push_back(pack(address));
  return names;
}

std::optional<EndpointAddress> TcpEndpoint::find(const Name& peer, std::uint16_t target) const {
  if (const Part* part = peer.find(link(), target)) return EndpointAddress::parse(part->bytes);
  const Part* bare = peer.find(kSocketLink, 0);
  const auto first = bare ? unpack(bare->bytes) : std::nullopt;
  const auto address = first ? advance(*first, 0, target) : std::nullopt;  // context i listens on port + i
  if (!address) return {};
  return EndpointAddress{.id = kAnybody, .network = this_network(), .addresses = {*address}};
}

Reach TcpEndpoint::reaches(const Name& peer, std::uint16_t target, std::size_t) const {
  if (!peer.find(link(), target) && !peer.find(kSocketLink, 0))
    return {.why = "the peer has no " + link() + " link", .expected = true};
  const auto where = find(peer, target);
  if (!where) return {false, "the peer's name holds no tcp part of a version that this library reads"};
  const auto routes = routes_to(*where);
  if (!routes.empty()) return {true, "tcp to " + routes.front().text()};
  if (where->addresses.front().loopback())
    return {.why =
                "the peer listens on the loopback of another host (or network name space) only; it must "
                "name an interface, as in \"tcp:eth0\", or set tcp_listen",
            .expected = true};
  return {false, "no route to " + where->addresses.front().text()};
}

// The stream to a peer; null: there is none. A caller that has proven its id, but could not know that of this
// side, is as good as one that this side has called.
std::shared_ptr<TcpStream> TcpEndpoint::stream_to(const EndpointAddress& where,
                                                  std::size_t wanted_auth) const {
  StreamKey wanted_key = key_of(where, wanted_auth);
  if (const auto found = streams_.find(wanted_key); found != streams_.end()) return found->second;
  wanted_key.served = true;
  if (const auto found = streams_.find(wanted_key);
      found != streams_.end() && found->second->open() && where.id != identity_.id)
    return found->second;
  return nullptr;
}

std::unique_ptr<Path> TcpEndpoint::connect(PeerId id, const Name& peer, std::uint16_t target,
                                           std::size_t auth_index) {
  const auto where = find(peer, target);
  // A peer that has called is reached even if this side cannot call it.
  const auto called = [&] {
    const auto there = where && where->id != kAnybody ? stream_to(*where, auth_index) : nullptr;
    return there && there->open();
  };
  if (const Reach reach = reaches(peer, target, auth_index); !where || (!reach.ok && !called()))
    throw Error(Errc::unreachable,
                "peer " + std::to_string(id) + " cannot be reached over tcp: " + reach.why);
  if (const auto other = other_versions_.extract(key_of(*where, auth_index)))
    throw Error(Errc::not_supported, "this side speaks wire versions " + text_of(kOurVersions) +
                                         ", the peer at " + where->addresses.front().text() + " " +
                                         text_of(other.mapped()) +
                                         "; run versions of pyfab that have one in common");
  std::vector<SocketAddress> routes = routes_to(*where);
  std::shared_ptr<TcpStream> stream = stream_to(*where, auth_index);
  const bool known = stream != nullptr;
  if (!known) {
    const Part* part = peer.find(link(), target);
    stream = std::make_shared<TcpStream>(*this, names_of(part ? *part : *peer.find(kSocketLink, 0), *where),
                                         *where, auth_index);
  }
  auto path = std::make_unique<TcpPath>(stream, link());
  if (!known) stream->place = &streams_.emplace(key_of(*where, auth_index), stream).first->first;
  stream->sender().known_as(id);
  if (!known) stream->connect(std::move(routes));
  return path;
}

StreamKey TcpEndpoint::key_of(const IncomingConnection& caller) {
  const Hello& hello = caller.hello();
  const bool by_address = hello.to == kAnybody;
  IdBinding stranger;
  if (!caller.proven())
    stranger = caller.peer_key() != kNoPublicKey ? hello.binding : IdBinding{.number = ++strangers_};
  return {
      .peer = hello.from,
      .auth_index = caller.auth_index(),
      .served = !caller.proven() || by_address || identity_.kind != IdKind::key || hello.from == identity_.id,
      .address = by_address ? local_address(caller.socket()).text() : hello.where.encode(),
      .stranger = stranger};
}

// Only who has proven its id, or has the key of the caller that began it, meets a stream that stands here
// already. Two calls cross only where both ends take them for one stream.
void TcpEndpoint::admit(std::unique_ptr<IncomingConnection> caller) noexcept try {
  const Hello& hello = caller->hello();
  if (!services_.keys[caller->auth_index()].has(caller->secret())) return;  // removed while it waited
  const StreamKey place = key_of(*caller);
  std::shared_ptr<TcpStream> stream;
  if (const auto found = streams_.find(place); found != streams_.end()) {
    stream = found->second;
    if (stream->open()) {
      // Either this call has crossed the one that won, or the peer has lost the connection, which this side
      // has not noticed yet.
      if (stream->peer_number() == hello.stream) return;
      stream->fail(Errc::peer_lost);
      stream.reset();
    } else if (stream->connecting() && identity_.id < hello.from) {
      return stream->defer(std::move(caller));  // the call of the smaller id goes first
    }
  }
  // Only here it is known that no stream of the caller itself has ended for this one.
  if (!reception_.make_room(*caller, proven(*caller))) return;
  if (!stream) {
    stream = std::make_shared<TcpStream>(*this, names_of(*caller), hello.where, caller->auth_index());
    // Streams to addresses stand first. What a caller says of where it listens is believed only if this side
    // has found it there.
    for (auto at = streams_.begin(); at != streams_.end() && at->first.peer == kAnybody; ++at)
      if (caller->proven() && at->second->found == hello.from)
        add_names(stream->sender(), at->second->where());
    stream->place = &streams_.emplace(place, stream).first->first;
  }
  if (caller->welcome(stream->number())) {
    stream->sender().proven_with(caller->secret());
    stream->adopt(caller->take_stream(), hello.stream, caller->peer_key());
  } else if (!stream->connecting()) {
    stream->fail(caller->error() == Errc::no_memory ? Errc::no_memory : Errc::peer_lost);
  }
} catch (const std::exception&) {
  return;  // no memory
}

// What Sender::proven() will return for the caller's stream.
bool TcpEndpoint::proven(const IncomingConnection& caller) const {
  return Sender(services_.peers, names_of(caller), services_.keys[caller.auth_index()]).proven();
}

void TcpEndpoint::on_found(TcpStream& there, const EndpointId& id) noexcept try {
  there.found = id;
  for (auto at = streams_.lower_bound({.peer = id, .auth_index = 0});
       at != streams_.end() && at->first.peer == id; ++at)
    if (at->first.stranger == IdBinding{}) add_names(at->second->sender(), there.where());
} catch (const std::exception&) {
  return;  // no memory: they stay without a name
}

void TcpEndpoint::on_other_versions(const EndpointAddress& peer, std::size_t auth_index,
                                    WireVersions theirs) noexcept try {
  if (other_versions_.size() >= kMostVersions) other_versions_.clear();
  other_versions_.insert_or_assign(key_of(peer, auth_index), theirs);
} catch (const std::exception&) {
  return;  // no memory: the code of the error has to do
}

bool TcpEndpoint::progress() noexcept {
  ended_.clear();
  reception_.tidy();
  bool moved = flush(unsent_), blocked = false;
  while (!unread_.empty() && !services_.slice.spent()) moved |= unread_.pop_front().receive();
  if (++turn_ % kPollerTurn == 0) return false;
  const auto polled = polled_;
  for (std::size_t i = 0; i < polled.size() && !services_.slice.spent(); ++i) {
    TcpStream* const stream = polled[(turn_ + i) % polled.size()];  // whoever comes first may spend the slice
    if (!stream || std::ranges::find(polled_, stream) == polled_.end()) continue;  // retired meanwhile
    blocked |= stream->write_blocked();
    if (stream->receive())
      moved = true;
    else if (++stream->idle_polls > kMostIdlePolls)
      std::ranges::replace(polled_, stream, nullptr);
  }
  if (!moved) moved = flush(unhurried_);
  return moved && !blocked;  // the poller tells when a full socket takes more
}

bool TcpEndpoint::arm() noexcept {
  flush(unsent_);
  flush(unhurried_);
  return unread_.empty();
}

template <class List>
bool TcpEndpoint::flush(List& streams) noexcept {
  bool moved = false;
  while (!streams.empty()) moved |= streams.pop_front().send();
  return moved;
}

void TcpEndpoint::send_later(TcpStream& stream) noexcept { unsent_.push_back(stream); }

void TcpEndpoint::receive_later(TcpStream& stream) noexcept { unread_.push_back(stream); }

void TcpEndpoint::send_when_idle(TcpStream& stream) noexcept { unhurried_.push_back(stream); }

void TcpEndpoint::poll_directly(TcpStream& stream) noexcept {
  stream.idle_polls = 0;
  TcpStream** idlest = polled_.data();
  for (TcpStream*& place : polled_) {
    if (place == &stream) return;
    if (!place || (*idlest && place->idle_polls > (*idlest)->idle_polls)) idlest = &place;
  }
  if (!*idlest || (*idlest)->idle_polls != 0) *idlest = &stream;
}

void TcpEndpoint::forget(std::uint32_t region) noexcept {
  for (const auto& [place, stream] : streams_) stream->forget(region);
}

void TcpEndpoint::end_removed_keys() noexcept {
  // Each is taken out of the streams as by a tick, and others may be with it.
  for (next_tick_ = streams_.begin(); next_tick_ != streams_.end();) {
    TcpStream& stream = *(next_tick_++)->second;
    if (stream.sender().key_removed()) stream.fail(Errc::peer_lost);
  }
}

void TcpEndpoint::retire(TcpStream& stream) noexcept {
  std::ranges::replace(polled_, &stream, nullptr);
  decltype(unsent_)::erase(stream);
  decltype(unhurried_)::erase(stream);
  decltype(unread_)::erase(stream);
  stream.disconnect();
  if (!stream.place) return;
  const auto at = streams_.find(*std::exchange(stream.place, nullptr));
  if (at == next_tick_) ++next_tick_;
  ended_.insert(streams_.extract(at));
}

void TcpEndpoint::watch() noexcept {
  // Posts and receives come here all the time, and the period is worked out only where it is needed.
  if (!ticker_.running()) ticker_.start(Liveness::look_period(deadlines()));
}

void TcpEndpoint::tick() noexcept {
  bool more = reception_.tick(attended());
  // A tick may end its stream, and others. It reads what has come before it takes a peer for lost, whatever
  // the turn has moved so far.
  for (next_tick_ = streams_.begin(); next_tick_ != streams_.end();) {
    services_.slice.begin();
    more |= (next_tick_++)->second->tick();
  }
  if (!more) ticker_.stop();
}

}  // namespace fab::tcp

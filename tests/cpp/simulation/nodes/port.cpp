#include "simulation/nodes/port.h"

#include <algorithm>

#include "fabric/completion/operation.h"
#include "simulation/nodes/node.h"

namespace fab::sim {
namespace {

constexpr std::size_t kPieces = 32;

Liveness::Deadlines deadlines_of(const Settings& settings) {
  return {.peer = settings.peer_deadline, .shared = settings.rail_deadline};
}

// Cuts the pieces to what the slice has left.
std::span<iovec> cut(std::span<iovec> pieces, const Slice& slice) {
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (; count < pieces.size() && bytes < slice.left(); ++count) {
    pieces[count].iov_len = std::min<std::size_t>(pieces[count].iov_len, slice.left() - bytes);
    bytes += pieces[count].iov_len;
  }
  return pieces.first(count);
}

// A key that is the peer's alone, as if it had been proven.
PublicKey key_of(const std::string& id) {
  PublicKey key{};
  const std::string process = id.substr(0, id.find('/'));
  std::copy_n(process.begin(), std::min(process.size(), key.size()), key.begin());
  return key;
}

}  // namespace

// --- streams

Stream::Stream(Port& port, std::string peer)
    : port_(&port),
      peer_(std::move(peer)),
      session_(
          {.segment = port.node().segment,
           .completions = port.node().completions,
           .receives = port.node().receives,
           .sender = std::make_shared<Sender>(port.node().peers, std::vector<Part>{{port.link(), 0, peer_}}),
           .context_slot = 0,
           .counts = counts_,
           .wake_domain = port.node().wake_domain,
           .table = &port.node().regions,
           .slice = &port.node().slice,
           .on_output = [this] { on_output(); },
           .handover = Handover::when_answered,
           .extensions = &port.node().flows,
           .on_cut = [this] { fail(Errc::peer_lost); }}) {}

Stream::~Stream() {
  if (wire_) wire_->close(side_);
}

void Stream::calls() noexcept {
  connecting_ = true;
  attempt_ = port_->node().story.random.next();
  called_at_ = port_->node().span_attended();
}

void Stream::attempt_failed(Errc error) {
  connecting_ = false;
  for (Call& call : std::exchange(deferred_, {})) {
    port_->admit(call);
    if (open()) return;
    error = Errc::peer_lost;  // the caller has hung up
  }
  if (!open()) fail(error);
}

void Stream::adopt(std::shared_ptr<Wire> wire, int side, std::uint64_t number) {
  connecting_ = false;
  deferred_.clear();
  session_.sender().proven_by(key_of(peer_));
  wire_ = std::move(wire);
  side_ = side;
  number_ = number;
  send();
}

std::size_t Stream::post(std::span<const Transfer> batch) noexcept {
  if (state_ != Errc::ok) {
    for (const Transfer& transfer : batch) transfer.operation->settle(state_, 0);
    counts_.refuse(batch);
    return batch.size();
  }
  const std::size_t posted = session_.post(batch);
  if (session_.broken()) fail(Errc::no_memory);
  if (posted != 0 && state_ == Errc::ok) port_->node().wake(port_->node().story.now);
  return posted;
}

bool Stream::flush() noexcept {
  Story& story = port_->node().story;
  const Slice& slice = port_->node().slice;
  bool any = false;
  session_.end_turn();
  while (wire_ && !slice.spent()) {
    iovec pieces[kPieces];
    const auto shown =
        cut(std::span(pieces, session_.output(pieces, story.random.between(1, kPieces))), slice);
    if (shown.empty()) break;
    const std::size_t taken = wire_->send(side_, shown);
    if (taken == 0) break;
    session_.sent(taken);
    any = true;
  }
  return any;
}

bool Stream::send() noexcept {
  const bool any = flush();
  if (session_.broken()) fail(Errc::no_memory);
  return any;
}

void Stream::on_output() noexcept {
  if (!port_) return;
  if (!receiving_ && open() && !session_.broken()) flush();
  port_->node().wake(port_->node().story.now);
}

bool Stream::receive() noexcept {
  if (!wire_) return false;
  receiving_ = true;
  const bool any = take_in();
  receiving_ = false;
  if (any && wire_ && session_.has_output()) flush();
  if (state_ == Errc::ok && session_.broken()) fail(Errc::no_memory);
  return any;
}

bool Stream::take_in() noexcept {
  Story& story = port_->node().story;
  const Slice& slice = port_->node().slice;
  bool any = false;
  while (!slice.spent()) {
    iovec pieces[kPieces];
    const auto room = cut(std::span(pieces, session_.input(pieces, story.random.between(2, kPieces))), slice);
    const std::size_t most = story.random.one_in(4) ? story.random.between(1, 200) : ~std::size_t{0};
    const std::size_t got = wire_->receive(side_, room, most);
    if (got == 0 && wire_->ended(side_)) {
      fail(Errc::peer_lost);
      return true;
    }
    if (got == 0) break;
    any = true;
    received_ += got;
    if (const Errc error = session_.received(got); error != Errc::ok) {
      if (error == Errc::protocol) story.wrong("a node sent what no peer may send");
      fail(error);
      return true;
    }
    if (!wire_) return true;  // it was cut from within
  }
  if (any) session_.end_turn(true);
  return any;
}

void Stream::forget(std::uint32_t region) noexcept {
  session_.forget(region);
  port_->node().wake(port_->node().story.now);
}

// As TcpStream: a silent peer that owes something is asked, and then given up.
void Stream::tick() noexcept {
  Node& node = port_->node();
  const auto now = node.span_attended();
  const auto deadlines = deadlines_of(node.settings);
  if (connecting_) {
    if (now - called_at_ > Liveness::handshake_time(deadlines)) attempt_failed(Errc::unreachable);
    return;
  }
  if (!open()) return;
  const auto unfinished = completes_frames_.look(session_.incoming().unfinished(), received_, now,
                                                 Liveness::patience(deadlines, false));
  if (unfinished == Liveness::Verdict::lost) {
    if (!receive()) fail(Errc::peer_lost);
    return;
  }
  const auto patience = Liveness::patience(deadlines, session_.one_of_several());
  switch (liveness_.look(session_.awaits_peer(), received_, now, patience)) {
    case Liveness::Verdict::lost:
      if (!receive()) fail(Errc::peer_lost);
      break;
    case Liveness::Verdict::ask:
      session_.ping();
      send();
      break;
    case Liveness::Verdict::well:
      break;
  }
}

void Stream::fail(Errc error) noexcept {
  if (state_ != Errc::ok) return;
  port_->retire(*this);
  detach(error);
}

void Stream::detach(Errc error) noexcept {
  if (state_ != Errc::ok) return;
  state_ = error;
  connecting_ = false;
  deferred_.clear();
  if (wire_) std::exchange(wire_, nullptr)->close(side_);
  port_ = nullptr;
  session_.fail(error);
}

void Stream::unplug() noexcept {
  if (wire_) std::exchange(wire_, nullptr)->close(side_);
}

void Stream::send_last() noexcept {
  port_->node().slice.begin();
  if (open()) flush();
}

std::uint64_t Stream::look() const noexcept {
  const auto few = [](std::size_t many) { return std::min<std::size_t>(many, 3); };
  const Messenger& messages = session_.messages();
  std::uint64_t all = few(session_.requests().outstanding());
  all = all * 2 + open();
  all = all * 2 + connecting_;
  all = all * 2 + messages.announces();
  all = all * 2 + messages.fetches();
  all = all * 2 + messages.owes();
  all = all * 2 + messages.at_rest();
  all = all * 2 + session_.incoming().unfinished();
  all = all * 2 + session_.has_output();
  all = all * 2 + session_.one_of_several();
  return all * 2 + !deferred_.empty();
}

// --- ports

Port::Port(Node& node, unsigned rail)
    : node_(node),
      rail_(rail),
      link_("sim." + std::to_string(rail)),
      id_(std::to_string(node.number) +
          (node.settings.same_names ? "" : "." + std::to_string(node.incarnation)) + "/" +
          std::to_string(rail)) {
  node.network.listen(*this);
}

Port::~Port() {
  node_.network.leave(*this);
  for (const auto& [id, stream] : streams_) stream->detach(Errc::canceled);
}

std::unique_ptr<Path> Port::connect(PeerId id, const Name& peer, std::uint16_t target, std::size_t) {
  const Part* const part = peer.find(link_, target);
  if (!part) throw Error(Errc::unreachable, "the peer has no " + link_);
  const auto found = streams_.find(part->bytes);
  auto stream = found != streams_.end() ? found->second : std::make_shared<Stream>(*this, part->bytes);
  auto path = std::make_unique<StreamPath>(stream, link_);
  stream->session().sender().known_as(id);
  if (found != streams_.end()) return path;
  streams_.emplace(part->bytes, stream);
  stream->calls();
  node_.network.call(stream);
  return path;
}

// As TcpEndpoint: of two calls that cross, that of the smaller id goes first.
void Port::admit(const Call& call) {
  const auto caller = call.caller.lock();
  if (!caller || !caller->port()) return;
  std::shared_ptr<Stream> stream;
  if (const auto found = streams_.find(call.from); found != streams_.end()) {
    stream = found->second;
    if (stream->open()) {
      if (stream->number() == call.attempt) return;
      stream->fail(Errc::peer_lost);
      stream.reset();
    } else if (stream->connecting() && id_ < call.from) {
      return stream->defer(call);
    }
  }
  if (!stream) {
    stream = std::make_shared<Stream>(*this, call.from);
    streams_.emplace(call.from, stream);
  }
  if (auto wire = node_.network.answer(call, stream)) stream->adopt(std::move(wire), 1, call.attempt);
}

void Port::retire(Stream& stream) noexcept {
  const auto at =
      std::ranges::find_if(streams_, [&](const auto& entry) { return entry.second.get() == &stream; });
  if (at == streams_.end()) return;
  ended_.push_back(std::move(at->second));
  streams_.erase(at);
}

bool Port::progress() noexcept {
  ended_.clear();
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [id, stream] : streams_) all.push_back(stream);
  if (all.empty()) return false;
  std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(++turn_ % all.size()), all.end());
  bool moved = false;
  for (const auto& stream : all) {
    if (stream->state() == Errc::ok && stream->open()) moved |= stream->send();
    if (stream->state() == Errc::ok && !node_.slice.spent()) moved |= stream->receive();
  }
  return moved;
}

void Port::forget(std::uint32_t region) noexcept {
  for (const auto& [id, stream] : streams_) stream->forget(region);
}

void Port::tick() noexcept {
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [id, stream] : streams_) all.push_back(stream);
  for (const auto& stream : all)
    if (stream->state() == Errc::ok) stream->tick();
}

}  // namespace fab::sim

#include "simulation/nodes/node.h"

#include <algorithm>

#include "fabric/types/error.h"

namespace fab::sim {
namespace {

const std::uint8_t kDomain[16] = {1};
constexpr Span kExpiryLook = milliseconds(500);

std::string place_of(const Name& peer) {
  std::string place;
  for (const Part& part : peer.parts) place.append(part.link).append(part.bytes).append(";");
  return place;
}

}  // namespace

Node::Node(Story& told, Network& between, const Settings& common, unsigned which, unsigned life)
    : number(which),
      incarnation(life),
      settings(common),
      story(told),
      network(between),
      segment(Segment::create(kDomain)),
      flows(receives, events, common.peer_deadline + 2 * common.rail_deadline, [this] {
        no_later_than(story.now);
        expire_at_ = std::min(expire_at_, story.now + kExpiryLook);
      }) {
  segment.header().context_rights.of[0].events.store(1);
  for (unsigned rail = 0; rail < common.rails; ++rail) ports_.push_back(std::make_unique<Port>(*this, rail));
  port_look_at_ = story.now;
  wake(story.now);
}

Node::~Node() {
  if (!gone()) die();
  *alive_ = nullptr;
}

// --- time

void Node::wake(Time when) {
  when = std::max({when, story.now, starved_until_});
  if (gone() || when >= turn_at_) return;
  turn_at_ = when;
  story.at(when, [alive = alive_, asked = ++turn_number_] {
    Node* const node = *alive;
    if (!node || node->gone() || node->turn_number_ != asked) return;
    node->turn_at_ = Time::max();
    if (node->starves()) return node->wake(node->starved_until_);
    node->turn();
  });
}

void Node::call(std::function<void()> what) {
  inbox_.push_back(std::move(what));
  wake(story.now);
}

void Node::starve(Time until) {
  if (!starves()) {
    absent_ += starved_until_ - starved_since_;
    starved_since_ = story.now;
    starved_until_ = story.now;
  }
  starved_until_ = std::max(starved_until_, until);
}

Time Node::attended() const noexcept {
  return story.now - absent_ - (std::min(story.now, starved_until_) - starved_since_);
}

void Node::no_later_than(Time when) noexcept {
  timer_at_ = std::min(timer_at_, when);
  if (timer_at_ != Time::max()) wake(timer_at_);
}

// One turn takes a moment, in which others have theirs.
void Node::turn() {
  ++story.tally.turns;
  slice.begin();
  in_turn_ = true;
  for (const auto& what : std::exchange(inbox_, {}))
    if (!gone()) what();
  progress();
  on_time();
  slice.begin();
  user();
  sweep();
  in_turn_ = false;
  if (gone()) return;
  note_states();
  const Time soon = story.now + story.random.span(microseconds(1), microseconds(20));
  const bool more = slice.spent() || !work_.empty() || !inbox_.empty();
  turn_at_ = Time::max();
  wake(more ? soon : std::max(soon, std::min({timer_at_, look_at_, expire_at_, port_look_at_})));
}

bool Node::progress() {
  bool moved = false;
  const std::size_t sides = ports_.size() + 1;
  const std::size_t first = turns_++ % sides;
  if (first == ports_.size() && !work_.empty()) serve_rails();
  serving_ = true;
  for (std::size_t i = 0; i < ports_.size(); ++i) moved |= ports_[(first + i) % ports_.size()]->progress();
  serving_ = false;
  if (!work_.empty() || time_is_up_) serve_rails();
  return moved;
}

void Node::on_time() {
  if (timer_at_ <= story.now) {
    timer_at_ = Time::max();
    time_is_up_ = true;
    serve_rails();
  }
  if (look_at_ <= story.now) on_look();
  if (expire_at_ <= story.now)
    expire_at_ = flows.expire(span_attended()) ? story.now + kExpiryLook : Time::max();
  if (port_look_at_ <= story.now) {
    for (const auto& port : ports_) port->tick();
    const Liveness::Deadlines deadlines{.peer = settings.peer_deadline, .shared = settings.rail_deadline};
    port_look_at_ = story.now + seconds(Liveness::look_period(deadlines));
  }
}

// --- rails, as LinkedEndpoint drives them

void Node::has_work(lnx::Rails& rails) noexcept {
  if (work_.push_back(rails) && !serving_) no_later_than(story.now);
}

void Node::serve_rails() {
  serving_ = true;
  LinkedList<lnx::Rails, lnx::RailsWork> todo;
  todo.take(work_);
  while (!todo.empty() && !slice.spent()) {
    lnx::Rails& rails = todo.pop_front();
    rails.pump();
    tick(rails);
  }
  todo.take(work_);
  work_.take(todo);
  if (std::exchange(time_is_up_, false)) {
    for (const auto& [place, rails] : rails_) tick(*rails);
    flows.expire(span_attended());
  }
  std::erase_if(ended_, [](const auto& rails) { return rails->idle() && rails.use_count() == 1; });
  serving_ = false;
  if (!work_.empty()) no_later_than(story.now);
}

void Node::tick(lnx::Rails& rails) {
  if (!rails.at_rest()) no_later_than(rails.tick());
}

void Node::on_look() {
  bool watched = false;
  for (const auto& [place, rails] : rails_) {
    tick(*rails);
    watched |= rails->watched();
  }
  look_at_ = watched ? story.now + seconds(lnx::Rails::kLook) : Time::max();
}

std::unique_ptr<Path> Node::connect_rails(const lnx::RailsParameters::Destination& to) {
  const std::string place = place_of(to.name);
  if (const auto found = rails_.find(place); found != rails_.end() && found->second->state() == Errc::ok) {
    found->second->known_as(to.peer);
    return std::make_unique<lnx::RailedPath>(found->second);
  }
  const auto [found, fresh] = rails_.try_emplace(place);
  lnx::FlowId flow{story.random.next(), 1};
  if (!fresh) flow = {found->second->flow().peer, found->second->flow().epoch + 1};
  auto rails = new_rails(to, flow);
  if (!fresh) ended_.push_back(std::move(found->second));
  found->second = std::move(rails);
  has_work(*found->second);
  return std::make_unique<lnx::RailedPath>(found->second);
}

std::shared_ptr<lnx::Rails> Node::new_rails(const lnx::RailsParameters::Destination& to, lnx::FlowId flow) {
  std::vector<lnx::RailLink> links;
  for (const auto& port : ports_) links.push_back({port.get(), port->link()});
  return std::make_shared<lnx::Rails>(
      lnx::RailsParameters{.completions = completions,
                           .slice = slice,
                           .peer_deadline = settings.peer_deadline,
                           .clock = [this] { return story.now; },
                           .attended = [this] { return attended(); },
                           .on_work = [this](lnx::Rails& some) { has_work(some); },
                           .on_watch =
                               [this] {
                                 look_at_ = std::min(look_at_, story.now + seconds(lnx::Rails::kLook));
                                 wake(look_at_);
                               },
                           .on_lost = [](const Loss&) {},
                           .preferred = flows.message_link(to.peer),
                           .peers = peers,
                           .flow = flow,
                           .to = to},
      links);
}

// --- peers

Name Node::name() const {
  Name all;
  for (const auto& port : ports_) all.parts.push_back(port->parts().front());
  return all;
}

void Node::learn(const Node& peer, bool keeps_old) {
  Known& known = book_[peer.number];
  if (known.handle != kNoPeer && known.incarnation == peer.incarnation) return;
  if (known.path) replaced_.push_back(std::move(known.path));
  if (known.handle != kNoPeer && !keeps_old) peers.remove(known.handle);
  known.handle = peers.insert(peer.name().encode());
  known.incarnation = peer.incarnation;
}

void Node::insert_anew(unsigned peer) {
  const auto found = book_.find(peer);
  if (found == book_.end() || found->second.handle == kNoPeer) return;
  Known& known = found->second;
  const std::string address = peers.lookup(known.handle);
  peers.remove(known.handle);
  known.handle = peers.insert(address);
}

Path* Node::path_to(unsigned peer, unsigned& life) {
  const auto found = book_.find(peer);
  if (found == book_.end() || found->second.handle == kNoPeer) return nullptr;
  Known& known = found->second;
  life = known.incarnation;
  const std::uint32_t generation = peers.generation(known.handle);
  if (known.path && known.path->state() == Errc::ok && known.generation == generation)
    return known.path.get();
  if (known.path && known.path->state() == Errc::ok && !known.path->idle())
    replaced_.push_back(std::move(known.path));
  known.path.reset();
  try {
    known.path = connect(known);
  } catch (const Error&) {
    return nullptr;
  }
  known.generation = generation;
  return known.path.get();
}

std::unique_ptr<Path> Node::connect(const Known& known) {
  const Name peer = peers.name(known.handle);
  if (settings.plain) return ports_.front()->connect(known.handle, peer, 0, 0);
  return connect_rails({.peer = known.handle, .name = peer, .target = 0, .auth_index = 0});
}

// Paths that ended go with the turn, and now and then rails that nobody uses.
void Node::sweep() {
  for (auto& [peer, known] : book_)
    if (known.path && known.path->state() != Errc::ok) known.path.reset();
  std::erase_if(replaced_, [](const auto& path) { return path->state() != Errc::ok || path->idle(); });
  if (!story.random.one_in(64)) return;
  std::erase_if(rails_,
                [](const auto& entry) { return entry.second->forgotten() && entry.second.use_count() == 1; });
}

// --- memory

std::uint32_t Node::expose(std::uint64_t key, std::vector<iovec> buffers, std::uint32_t rights,
                           bool persistent) {
  return regions.insert({.key = key,
                         .buffers = buffers,
                         .access = rights,
                         .flags = persistent ? region_flag::kPersistent : 0,
                         .enabled = true});
}

void Node::close_region(std::uint32_t region) {
  regions.start_close(region);
  for (const auto& port : ports_) port->forget(region);
  regions.finish_close(region);
}

// --- the end

void Node::close() {
  slice.begin();
  end(true);
}

void Node::die() { end(false); }

// A process that dies has its connections cut before anything here ends, so that nobody learns of it.
void Node::end(bool farewell) {
  user = [] {};
  inbox_.clear();
  if (!farewell)
    for (const auto& port : ports_)
      for (const auto& [id, stream] : port->streams()) stream->unplug();
  for (auto& [peer, known] : book_) known.path.reset();
  replaced_.clear();
  if (farewell) {
    for (const auto& [place, rails] : rails_) rails->begin_end();
    for (const auto& rails : ended_) rails->begin_end();
    for (const auto& port : ports_)
      for (const auto& [id, stream] : port->streams()) stream->send_last();
  }
  std::exchange(ports_, {}).clear();
  for (const auto& [place, rails] : rails_) rails->fail(Errc::canceled);
  rails_.clear();
  ended_.clear();
  receives.drop_all();
}

// What sessions and rails are in, whoever they lead to.
void Node::note_states() {
  std::map<std::string, std::uint64_t> by_peer;
  for (const auto& port : ports_)
    for (const auto& [id, stream] : port->streams()) {
      std::uint64_t& state = by_peer[id.substr(0, id.find('/'))];
      state = mix(state + stream->look() * 8 + port->rail() + 1);
    }
  for (const auto& [place, rails] : rails_) {
    const std::string peer = place.substr(5, place.find('/') - 5);  // behind "sim.0"
    const PathCounts counts = rails->counts();
    std::uint64_t state = std::min<std::uint64_t>(counts.posted - counts.settled, 3);
    state = state * 2 + rails->at_rest();
    state = state * 2 + rails->watched();
    state = state * 2 + rails->idle();
    state = state * 8 + (rails->state() == Errc::ok ? rails->flow().epoch % 4 : 7);
    by_peer[peer] = mix(by_peer[peer] + state * 0x10001);
  }
  for (const auto& [peer, state] : by_peer) {
    story.states.insert(state);
    story.note(state);
  }
}

}  // namespace fab::sim

#include "simulation/world.h"

#include <algorithm>
#include <cstdio>

#include "simulation/nodes/counted_memory.h"

namespace fab::sim {

World::World(Story& story)
    : story_(story),
      settings_(choose_settings()),
      pause_(milliseconds(story.random.between(4, 60))),
      calm_(milliseconds(story.random.between(20, 800))),
      network_(story, settings_.nodes, settings_.rails),
      model_(story, settings_),
      places_(settings_.nodes) {
  model_.reachable = [this](const Life& from, const Life& to) { return reachable(from, to); };
  for (unsigned i = 0; i < settings_.nodes; ++i) start(i);
}

World::~World() { story_.forget_all(); }

Settings World::choose_settings() {
  Random& random = story_.random;
  Settings chosen;
  chosen.nodes = static_cast<unsigned>(random.between(2, 5));
  chosen.rails = static_cast<unsigned>(random.between(1, 3));
  chosen.plain = chosen.rails == 1 && random.one_in(2);
  chosen.same_names = random.one_in(3);
  chosen.peer_deadline = static_cast<double>(random.between(5, 25)) / 10;
  chosen.rail_deadline = std::min(chosen.peer_deadline, static_cast<double>(random.between(2, 10)) / 10);
  return chosen;
}

// --- processes

void World::start(unsigned number) {
  Place& place = places_[number];
  place.starts = false;
  place.node = std::make_unique<Node>(story_, network_, settings_, number, ++place.incarnation);
  model_.begins(*place.node);
  place.client = std::make_unique<Client>(model_, *place.node, pause_);
  if (!storm_) place.client->rest();
  place.node->user = [&client = *place.client] { client.turn(); };
  for (unsigned other = 0; other < settings_.nodes; ++other) {
    if (other == number || !places_[other].node) continue;
    introduce(number, other);
    introduce(other, number);
  }
}

// One process hears of another's address some time after that has begun.
void World::introduce(unsigned number, unsigned to) {
  const Span span = story_.random.one_in(2) ? Span(0) : story_.random.any_span(milliseconds(1000));
  const bool keeps_old = story_.random.one_in(4);
  story_.in(span, [this, number, to, keeps_old] {
    Node* const node = places_[to].node.get();
    if (!node) return;
    node->call([this, number, to, keeps_old] {
      Node *const here = places_[to].node.get(), *const peer = places_[number].node.get();
      if (here && peer) here->learn(*peer, keeps_old);
    });
  });
}

void World::stop(unsigned number, bool dies) {
  Place& place = places_[number];
  if (!place.node) return;
  story_.fault(dies ? Fault::death : Fault::closing);
  model_.ends(*place.node);
  dies ? place.node->die() : place.node->close();
  place.node.reset();
  place.client.reset();
  review();
}

void World::restart_later(unsigned number, Span most) {
  if (std::exchange(places_[number].starts, true)) return;
  story_.in(story_.random.any_span(most), [this, number] {
    if (!places_[number].starts) return;
    story_.fault(Fault::restart);
    start(number);
    review();
  });
}

const Node* World::find(const Life& life) const {
  const Node* const node = places_[life.number].node.get();
  return node && node->incarnation == life.incarnation ? node : nullptr;
}

bool World::reachable(const Life& from, const Life& to) const {
  const Node* const peer = find(to);
  if (!peer || peer->starves()) return false;
  for (unsigned rail = 0; rail < settings_.rails; ++rail)
    if (!network_.road(from.number, to.number, rail).silent) return true;
  return false;
}

void World::review() {
  model_.review([this](const Life& life) { return find(life); });
}

// --- the story

void World::run() {
  const Time until = story_.now + milliseconds(story_.random.between(200, 3000));
  const Time began = story_.now;
  story_.in(story_.random.any_span(calm_), [this] { faults(); });
  while (!story_.broken() && story_.step(until)) {
  }
  if (!story_.broken()) settle_all();
  if (!story_.broken()) end_all();
  story_.tally.passed += story_.now - began;
}

void World::heal() {
  storm_ = false;
  for (unsigned a = 0; a < settings_.nodes; ++a)
    for (unsigned b = a + 1; b < settings_.nodes; ++b)
      for (unsigned rail = 0; rail < settings_.rails; ++rail) {
        network_.heal(a, b, rail);
        Road& road = network_.road(a, b, rail);
        road.rate = std::max(road.rate, 20e6);
      }
  for (Place& place : places_)
    if (place.client) place.client->rest();
  review();
}

// Nothing gets to this node or from it, and nobody is told. What waits for that ends by its deadline.
void World::cut_off(unsigned node) {
  for (unsigned other = 0; other < settings_.nodes; ++other)
    for (unsigned rail = 0; other != node && rail < settings_.rails; ++rail)
      network_.road(node, other, rail).silent = true;
  review();
}

void World::until_settled(Time& look) {
  const Time limit = story_.now + std::chrono::seconds(60);
  while (!story_.broken() && story_.now < limit) {
    look += milliseconds(500);
    while (!story_.broken() && story_.step(look)) {
    }
    for (Place& place : places_)
      if (place.node) place.node->wake(story_.now);
    const bool starting = std::ranges::any_of(places_, [](const Place& place) { return place.starts; });
    const bool starves =
        std::ranges::any_of(places_, [](const Place& place) { return place.node && place.node->starves(); });
    if (!model_.any_open() && !starting && !starves) break;
  }
  if (!story_.broken() && model_.any_open()) story_.wrong(model_.open_text());
}

// Without faults everything has an outcome in the end, and what was told complete has happened.
void World::settle_all() {
  heal();
  Time look = story_.now;
  if (story_.random.one_in(3)) {
    lonely_ = static_cast<unsigned>(story_.random.below(settings_.nodes));
    cut_off(*lonely_);
    until_settled(look);
    lonely_.reset();
    heal();
  }
  until_settled(look);
  // What is on its way to receivers arrives, and flows without rails are forgotten.
  look += seconds(settings_.peer_deadline + 2 * settings_.rail_deadline + 2);
  while (!story_.broken() && story_.step(look)) {
  }
  for (const auto& landing : model_.landings()) {
    Place& place = places_[landing->at.number];
    if (story_.broken() || landing->settled || !find(landing->at)) continue;
    if (!place.node->receives.cancel(*landing)) story_.wrong("a receive that was matched has no outcome");
  }
  for (const Place& place : places_)
    if (place.node) model_.read_notices(*place.node);
  if (!story_.broken()) model_.check_all([this](const Life& life) { return find(life); });
}

void World::end_all() {
  std::vector<unsigned> order(settings_.nodes);
  for (unsigned i = 0; i < settings_.nodes; ++i) order[i] = i;
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[story_.random.below(i)]);
  for (const unsigned number : order) {
    Place& place = places_[number];
    if (!place.node) continue;
    if (place.node->receives.held() != 0) story_.wrong("messages wait that nobody can see");
    model_.ends(*place.node);
    place.node->close();
    place.node.reset();
    place.client.reset();
    story_.step(story_.now + milliseconds(1));
  }
}

namespace {

std::uint64_t told = 0;

}  // namespace

// A sanitizer that ends the program says which seed it was.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

// `left` becomes the number of pieces of memory that were not returned.
Result tell_once(std::uint64_t seed, std::int64_t& left) {
  Result result{.seed = seed};
  result.states.reserve(1 << 14);
  const std::int64_t before = allocations();
  {
    Story story(seed);
    {
      World world(story);
      world.run();
    }
    result.trace = story.trace();
    result.tally = story.tally;
    result.tally.seeds = 1;
    if (story.broken()) {
      result.wrong = story.wrong();
      return result;
    }
    for (const std::uint64_t state : story.states)
      if (result.states.size() < result.states.capacity()) result.states.push_back(state);
  }
  left = allocations() - before;
  return result;
}

}  // namespace

Result tell(std::uint64_t seed) {
  told = seed;
  if (__sanitizer_set_death_callback)
    __sanitizer_set_death_callback(
        [] { std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(told)); });
  std::int64_t left = 0;
  Result result = tell_once(seed, left);
  if (result.wrong.empty() && left != 0) tell_once(seed, left);  // some things are made once in a process
  if (result.wrong.empty() && left != 0)
    result.wrong = std::to_string(left) + " pieces of memory were not returned";
  return result;
}

}  // namespace fab::sim

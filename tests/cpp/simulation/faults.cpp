#include <algorithm>

#include "simulation/world.h"

// What befalls nodes and roads.
namespace fab::sim {

void World::faults() {
  if (!storm_) return;
  befall();
  review();
  story_.in(story_.random.any_span(calm_), [this] { faults(); });
}

void World::befall() {
  switch (story_.random.below(20)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return cut();
    case 4:
    case 5:
    case 6:
      return silence();
    case 7:
    case 8:
      return slow();
    case 9:
    case 10:
      return starve();
    case 11:
      return isolate();
    case 12:
    case 13: {
      const auto number = static_cast<unsigned>(story_.random.below(settings_.nodes));
      stop(number, !story_.random.one_in(3));
      if (!story_.random.one_in(6)) restart_later(number, milliseconds(2000));
      return;
    }
    case 14:
      return swizzle();
    case 15:
    case 16:
    case 17:
      return close_region();
    default:
      return rename();
  }
}

Node* World::any_node() { return story_.random.one_of(places_).node.get(); }

void World::cut() {
  const auto wires = network_.wires();
  if (wires.empty()) return;
  story_.fault(Fault::cut);
  wires[story_.random.below(wires.size())]->cut();
}

void World::quiet(unsigned a, unsigned b, unsigned rail, Span span) {
  network_.road(a, b, rail).silent = true;
  story_.in(span, [this, a, b, rail] {
    if (a == lonely_ || b == lonely_) return;
    network_.heal(a, b, rail);
    review();
  });
}

void World::silence() {
  const auto a = static_cast<unsigned>(story_.random.below(settings_.nodes));
  const auto b = static_cast<unsigned>(story_.random.below(settings_.nodes));
  if (a == b) return;
  story_.fault(Fault::silence);
  quiet(a, b, static_cast<unsigned>(story_.random.below(settings_.rails)),
        story_.random.any_span(milliseconds(5000)));
}

void World::slow() {
  const auto a = static_cast<unsigned>(story_.random.below(settings_.nodes));
  const auto b = static_cast<unsigned>(story_.random.below(settings_.nodes));
  if (a == b) return;
  story_.fault(Fault::slowness);
  Road& road = network_.road(a, b, static_cast<unsigned>(story_.random.below(settings_.rails)));
  const double factor = static_cast<double>(story_.random.between(5, 100));
  const Road before = road;
  road.rate = std::max(road.rate / factor, 1e6);
  road.latency = std::min<Span>(road.latency * 100, milliseconds(20));
  story_.in(story_.random.any_span(milliseconds(4000)), [&road, before] {
    road.rate = before.rate;
    road.latency = before.latency;
  });
}

void World::starve() {
  Node* const node = any_node();
  if (!node) return;
  story_.fault(Fault::starvation);
  const Time until = story_.now + story_.random.any_span(milliseconds(4000));
  node->starve(until);
  story_.at(until + Span(1), [this] { review(); });
}

void World::isolate() {
  const auto node = static_cast<unsigned>(story_.random.below(settings_.nodes));
  story_.fault(Fault::isolation);
  const Span span = story_.random.one_in(2) ? story_.random.any_span(milliseconds(8000))
                                            : story_.random.span(milliseconds(3000), milliseconds(9000));
  for (unsigned other = 0; other < settings_.nodes; ++other)
    for (unsigned rail = 0; other != node && rail < settings_.rails; ++rail) quiet(node, other, rail, span);
}

// Nodes stop one after the other, and come back in another order.
void World::swizzle() {
  story_.fault(Fault::swizzle);
  Span gone{};
  for (unsigned number = 0; number < settings_.nodes; ++number) {
    if (story_.random.one_in(3)) continue;
    gone += story_.random.any_span(milliseconds(100));
    const bool dies = story_.random.one_in(2);
    const Span stays = story_.random.any_span(milliseconds(3000));
    story_.in(gone, [this, number, dies, stays] {
      Node* const node = places_[number].node.get();
      if (!node || !storm_) return;
      if (!dies) {
        node->starve(story_.now + stays);
        story_.in(stays + Span(1), [this] { review(); });
        return review();
      }
      stop(number, true);
      restart_later(number, stays + Span(8));
    });
  }
}

void World::close_region() {
  Node* const node = any_node();
  if (!node) return;
  Home* const home = model_.home_of({node->number, node->incarnation});
  node->call([this, home] {
    if (home->shares.empty()) return;
    auto at = home->shares.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(story_.random.below(home->shares.size())));
    model_.close_passing(*home, *at->second);
  });
}

void World::rename() {
  Node* const node = any_node();
  if (!node) return;
  const auto peer = static_cast<unsigned>(story_.random.below(settings_.nodes));
  story_.fault(Fault::renamed);
  node->call([node, peer] { node->insert_anew(peer); });
}

}  // namespace fab::sim

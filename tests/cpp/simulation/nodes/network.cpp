#include "simulation/nodes/network.h"

#include <algorithm>

#include "simulation/nodes/node.h"

namespace fab::sim {

Network::Network(Story& story, unsigned nodes, unsigned rails)
    : story_(story), nodes_(nodes), rails_(rails), roads_(std::size_t{nodes} * nodes * rails) {
  for (Road& road : roads_) {
    road.latency = story.random.span(microseconds(5), microseconds(500));
    road.rate = static_cast<double>(story.random.between(20, 2000)) * 1e6;
  }
}

Road& Network::road(unsigned a, unsigned b, unsigned rail) {
  return roads_[(std::size_t{std::min(a, b)} * nodes_ + std::max(a, b)) * rails_ + rail];
}

void Network::listen(Port& port) { ports_[port.id()] = &port; }

void Network::leave(Port& port) { ports_.erase(port.id()); }

void Network::tell(const Call& call, std::function<void(Stream*)> what) {
  const auto caller = call.caller.lock();
  const bool waits = caller && caller->port() && caller->connecting() && caller->attempt() == call.attempt;
  if (!waits) return what(nullptr);
  caller->port()->node().call([call, what = std::move(what)] {
    const auto there = call.caller.lock();
    const bool still = there && there->port() && there->connecting() && there->attempt() == call.attempt;
    what(still ? there.get() : nullptr);
  });
}

void Network::call(const std::shared_ptr<Stream>& caller) {
  const Call call{caller->port()->id(), caller, caller->attempt()};
  const Road& way = road(caller->port()->node().number, static_cast<unsigned>(std::stoul(caller->peer())),
                         caller->port()->rail());
  story_.in(way.latency, [this, call, to = caller->peer()] { arrive(call, to); });
}

void Network::arrive(const Call& call, const std::string& to) {
  const auto caller = call.caller.lock();
  if (!caller || !caller->port() || !caller->connecting() || caller->attempt() != call.attempt) return;
  const unsigned from = caller->port()->node().number;
  const Road& way = road(from, static_cast<unsigned>(std::stoul(to)), caller->port()->rail());
  if (way.silent) return story_.in(milliseconds(200), [this, call, to] { arrive(call, to); });
  const auto there = ports_.find(to);
  if (there == ports_.end()) return refuse(call);
  there->second->node().call([this, call, to] {
    if (const auto still = ports_.find(to); still != ports_.end()) still->second->admit(call);
  });
}

void Network::refuse(const Call& call) {
  story_.in(microseconds(50), [this, call] {
    tell(call, [](Stream* caller) {
      if (caller) caller->attempt_failed(Errc::unreachable);
    });
  });
}

std::shared_ptr<Wire> Network::answer(const Call& call, const std::shared_ptr<Stream>& called) {
  const auto caller = call.caller.lock();
  if (!caller || !caller->port()) return nullptr;
  Port& port = *caller->port();
  Road& way = road(port.node().number, called->port()->node().number, port.rail());
  std::weak_ptr<Stream> ends[2] = {call.caller, called};
  auto wire = std::make_shared<Wire>(story_, way, [ends = std::to_array(ends)](int side, Time when) {
    if (const auto end = ends[static_cast<std::size_t>(side)].lock(); end && end->port())
      end->port()->node().wake(when);
  });
  std::erase_if(wires_, [](const Standing& standing) { return standing.wire.expired(); });
  wires_.push_back({wire, &way});
  story_.in(way.latency, [this, call, wire] {
    tell(call, [call, wire](Stream* there) {
      if (there)
        there->adopt(wire, 0, call.attempt);
      else
        wire->close(0);
    });
  });
  return wire;
}

std::vector<std::shared_ptr<Wire>> Network::wires() {
  std::vector<std::shared_ptr<Wire>> all;
  for (const Standing& standing : wires_)
    if (auto wire = standing.wire.lock(); wire && wire->whole()) all.push_back(std::move(wire));
  return all;
}

void Network::heal(unsigned a, unsigned b, unsigned rail) {
  Road& way = road(a, b, rail);
  if (!std::exchange(way.silent, false)) return;
  for (const Standing& standing : wires_)
    if (const auto wire = standing.wire.lock(); wire && standing.road == &way) wire->heal();
}

}  // namespace fab::sim

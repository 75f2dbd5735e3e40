#include "simulation/nodes/story.h"

#include <cstdio>
#include <cstdlib>

namespace fab::sim {

void Tally::add(const Tally& other) {
  seeds += other.seeds;
  turns += other.turns;
  bytes += other.bytes;
  received += other.received;
  scattered += other.scattered;
  claimed += other.claimed;
  discarded += other.discarded;
  received_by_many += other.received_by_many;
  passed += other.passed;
  for (std::size_t kind = 0; kind < operations.size(); ++kind)
    for (std::size_t how = 0; how < operations[kind].size(); ++how)
      operations[kind][how] += other.operations[kind][how];
  for (std::size_t i = 0; i < faults.size(); ++i) faults[i] += other.faults[i];
}

std::string Tally::text() const {
  std::string all =
      std::to_string(seeds) + " seeds, " + std::to_string(turns) + " turns, " + std::to_string(bytes >> 20) +
      " MiB over wires, " + std::to_string(received) + " messages received (" + std::to_string(claimed) +
      " claimed before, " + std::to_string(received_by_many) + " by a receive for many), " +
      std::to_string(discarded) + " discarded, " + std::to_string(scattered) + " operations on pieces, " +
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(passed).count()) +
      " s of virtual time\n";
  for (std::size_t kind = 0; kind < operations.size(); ++kind) {
    all += std::string("  ") + kKindNames[kind] + ":";
    for (std::size_t how = 0; how < operations[kind].size(); ++how)
      if (operations[kind][how] != 0)
        all += " " + std::to_string(operations[kind][how]) + " " + kOutcomeNames[how] + ",";
    all.back() = '\n';
  }
  all += "  faults:";
  for (std::size_t i = 0; i < faults.size(); ++i)
    all += " " + std::to_string(faults[i]) + " " + kFaultNames[i] + ",";
  all.back() = '\n';
  return all;
}

bool Story::step(Time until) {
  if (agenda_.empty() || agenda_.begin()->first.first > until) {
    now = std::max(now, until);
    return false;
  }
  auto next = agenda_.extract(agenda_.begin());
  now = next.key().first;
  next.mapped()();
  return true;
}

void Story::wrong(const std::string& what) {
  if (broken()) return;
  const auto at = std::chrono::duration_cast<microseconds>(now.time_since_epoch()).count() - 3'600'000'000;
  wrong_ = "at " + std::to_string(at) + " us: " + what;
}

}  // namespace fab::sim

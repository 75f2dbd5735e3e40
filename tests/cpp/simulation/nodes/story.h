#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/bytes/mix.h"
#include "base/deadline.h"

// What all of a simulation shares: the virtual clock, the one source of chance, what is to happen when, and
// what has gone wrong.
namespace fab::sim {

using Time = Clock::time_point;
using Span = Clock::duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

inline Span seconds(double span) { return std::chrono::duration_cast<Span>(in_nanoseconds(span)); }

// The distributions of the standard library differ from one library to the next, so that a seed would not
// tell the same story everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() noexcept {  // splitmix64
    std::uint64_t word = state_ += 0x9E3779B97F4A7C15u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
  }
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) noexcept {
    return least + below(most - least + 1);
  }
  bool one_in(std::uint64_t many) noexcept { return below(many) == 0; }
  Span span(Span least, Span most) noexcept {
    return Span(static_cast<Span::rep>(
        between(static_cast<std::uint64_t>(least.count()), static_cast<std::uint64_t>(most.count()))));
  }
  // Of all orders of magnitude, short ones as often as long ones.
  Span any_span(Span most) noexcept { return span(Span(1), Span(1 + (most.count() >> below(8)))); }
  template <class T>
  T& one_of(std::vector<T>& some) noexcept {
    return some[below(some.size())];
  }

 private:
  std::uint64_t state_;
};

enum class Kind : std::uint8_t {
  put,
  notified_put,
  durable_put,
  striped,
  get,
  add,
  fetch,
  compare,
  message,
  announced,
  refused
};
inline constexpr std::array kKindNames{
    "put",     "put with remote data", "durable put",   "striped put", "get", "add", "fetch", "compare",
    "message", "announced message",    "refused access"};
enum class Outcome : std::uint8_t { ok, refused, lost, unreachable, canceled, other };
inline constexpr std::array kOutcomeNames{"ok", "refused", "lost", "unreachable", "canceled", "other"};
enum class Fault : std::uint8_t {
  cut,
  silence,
  slowness,
  starvation,
  isolation,
  death,
  closing,
  restart,
  swizzle,
  region_closed,
  renamed
};
inline constexpr std::array kFaultNames{
    "connections cut", "silent rails", "slow rails", "starved nodes",  "isolated nodes",     "deaths",
    "closed nodes",    "restarts",     "swizzles",   "regions closed", "peers inserted anew"};

// What was done, over any number of seeds.
struct Tally {
  std::uint64_t seeds = 0, turns = 0, bytes = 0, received = 0;
  std::uint64_t scattered = 0;  // operations whose local memory was in pieces
  std::uint64_t claimed = 0, discarded = 0, received_by_many = 0;  // messages
  Span passed{};
  std::array<std::array<std::uint64_t, kOutcomeNames.size()>, kKindNames.size()> operations{};
  std::array<std::uint64_t, kFaultNames.size()> faults{};

  void add(const Tally& other);
  std::string text() const;
};

// The story that one seed tells.
class Story {
 public:
  explicit Story(std::uint64_t seed) : random(seed) {}

  // The action happens at that time; of several at one time, the one that was asked for first.
  void at(Time when, std::function<void()> action) {
    agenda_.emplace(std::pair{std::max(when, now), ++asked_}, std::move(action));
  }
  void in(Span span, std::function<void()> action) { at(now + span, std::move(action)); }
  // Lets the next action happen. False: nothing is left before `until`, which it is now.
  bool step(Time until);
  void forget_all() { agenda_.clear(); }

  // A promise was broken. The first one is told.
  void wrong(const std::string& what);
  bool broken() const noexcept { return !wrong_.empty(); }
  const std::string& wrong() const noexcept { return wrong_; }

  // What distinguishes this story from others.
  void note(std::uint64_t what) noexcept { trace_ = mix(trace_ ^ what) + what; }
  std::uint64_t trace() const noexcept { return trace_; }
  void fault(Fault what) noexcept {
    ++tally.faults[static_cast<std::size_t>(what)];
    note(0xFA0000 + static_cast<std::uint64_t>(what));
  }

  Random random;
  Time now{std::chrono::hours(1)};
  Tally tally;
  std::unordered_set<std::uint64_t> states;  // hashes of what sessions and rails were seen in

 private:
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> agenda_;
  std::uint64_t asked_ = 0;
  std::uint64_t trace_ = 0;
  std::string wrong_;
};

}  // namespace fab::sim

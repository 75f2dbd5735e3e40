#include "providers/lnx/endpoint.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/bytes/random.h"
#include "base/queues/room.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/event_queue.h"
#include "fabric/completion/link_log.h"
#include "fabric/types/error.h"

namespace fab::lnx {
namespace {

constexpr double kExpiryLook = 0.5;  // seconds

}  // namespace

// Runs out once, at a time that may be changed until then.
class LinkedEndpoint::Timer final : public ReadyHandler {
 public:
  Timer(Poller& poller, LinkedEndpoint& endpoint)
      : poller_(poller),
        endpoint_(endpoint),
        fd_(check_call(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), "timerfd_create")) {
    poller_.add(fd_.get(), EPOLLIN, *this);
  }
  ~Timer() override { poller_.remove(fd_.get(), *this); }

  void no_later_than(Clock::time_point when) noexcept {
    if (when >= set_) return;
    set_ = when;
    const auto left = std::max<std::int64_t>(
        1, std::chrono::duration_cast<std::chrono::nanoseconds>(when - Clock::now()).count());
    itimerspec timing{};
    timing.it_value = {left / 1'000'000'000, left % 1'000'000'000};
    ::timerfd_settime(fd_.get(), 0, &timing, nullptr);
  }
  void on_ready(std::uint32_t) noexcept override {
    std::uint64_t expirations;
    [[maybe_unused]] const auto got = ::read(fd_.get(), &expirations, sizeof expirations);
    set_ = Clock::time_point::max();
    endpoint_.time_is_up_ = true;
    if (endpoint_.serve_rails()) no_later_than(Clock::now());
  }

 private:
  Poller& poller_;
  LinkedEndpoint& endpoint_;
  OwnFd fd_;
  Clock::time_point set_ = Clock::time_point::max();
};

LinkedEndpoint::LinkedEndpoint(const std::vector<Link>& links, const EndpointServices& services,
                               const LinkedOptions& options)
    : services_(services),
      options_(options),
      flows_(services.receives, services.events, options.peer_deadline + 2 * options.rail_deadline,
             [this] {
               timer_->no_later_than(Clock::now());
               expiry_.start(kExpiryLook);
             }),
      timer_(std::make_unique<Timer>(services.poller, *this)),
      looks_(services.poller, [this] { on_look(); }),
      expiry_(services.poller, [this] { expire(); }) {
  EndpointServices lent = services;
  lent.extensions = &flows_;
  lent.shared_deadline = options.rail_deadline;
  lent.on_path_ended = [this] {
    services_.on_path_ended();
    look_soon();
  };
  for (const Link& link : links)
    links_.push_back({link.domain->open_endpoint(lent), link.tag, link.network, link.domain->part_check()});
}

LinkedEndpoint::~LinkedEndpoint() {
  for (const auto& [place, rails] : rails_) rails->begin_end();
  for (const auto& some : ended_) some->begin_end();
  links_.clear();  // what the links hold settles
  for (const auto& [place, rails] : rails_) rails->fail(Errc::canceled);
}

std::vector<std::string> LinkedEndpoint::socket_names() const {
  std::vector<std::string> all;
  for (const Opened& link : links_) std::ranges::move(link.endpoint->socket_names(), std::back_inserter(all));
  return all;
}

std::vector<Part> LinkedEndpoint::parts() const {
  std::vector<Part> all;
  for (const Opened& link : links_) std::ranges::move(link.endpoint->parts(), std::back_inserter(all));
  return all;
}

namespace {

// Why links were not taken. A link that only lacks something for now gives its error to the whole.
struct Reasons {
  std::string text;
  Errc error = Errc::unreachable;

  void add(const std::string& why, Errc code) {
    text += (text.empty() ? "" : "; ") + why;
    if (code != Errc::unreachable && error == Errc::unreachable) error = code;
  }
  void add(const std::exception& thrown) { add(thrown.what(), shortage_or(thrown, Errc::unreachable)); }
};

Reach look(const Endpoint& endpoint, const Name& peer, std::uint16_t target, std::size_t auth_index) try {
  return endpoint.reaches(peer, target, auth_index);
} catch (const std::system_error& error) {
  return {false, error.what(), shortage_or(error, Errc::unreachable)};
}

}  // namespace

Reach LinkedEndpoint::reaches(const Name& peer, std::uint16_t target, std::size_t auth_index) const {
  Reach best;
  Reasons reasons;
  for (const Opened& link : links_) {
    const Reach reach = look(*link.endpoint, peer, target, auth_index);
    if (!reach.ok) {
      reasons.add(reach.why, reach.error);
    } else if (!best.ok) {
      best = reach;
      if (!link.network) break;
    } else if (link.network) {
      best.why += ", " + reach.why;  // another rail
    }
  }
  if (!best.ok) return {false, reasons.text, reasons.error};
  if (!reasons.text.empty()) best.why += "; not taken: " + reasons.text;
  return best;
}

bool LinkedEndpoint::Opened::named_in(const Name& peer, std::uint16_t target) const try {
  const Part* const part = peer.find(tag, target);
  return part && check({part->link, part->context, part->bytes}).usable;
} catch (const Error&) {
  return false;
}

std::vector<RailLink> LinkedEndpoint::rails_to(const Name& peer, std::uint16_t target,
                                               std::size_t auth_index) const {
  std::vector<RailLink> named;  // links in the peer's name, also those that are down now
  bool reached = false;
  for (const Opened& link : links_) {
    const bool reaches = look(*link.endpoint, peer, target, auth_index).ok;
    if (reaches && !link.network && !reached) return {};
    reached |= reaches && link.network;
    if (link.network && named.size() < kMaxRails && link.named_in(peer, target))
      named.push_back({link.endpoint.get(), link.tag});
  }
  // A peer that is known by a bare socket address only is reached in one way.
  return reached && named.size() > 1 ? named : std::vector<RailLink>{};
}

// Two handles of one peer share its rails, as they share its streams.
std::string LinkedEndpoint::place_of(const Name& peer, std::uint16_t target, std::size_t auth_index) {
  std::string place = std::to_string(auth_index) + ":" + std::to_string(target);
  for (const Part& part : peer.parts)
    if (part.context == target) place.append(part.link).append(part.bytes);
  return place;
}

PathPolicy::Question LinkedEndpoint::question(PeerId id, const Name& peer, std::uint16_t target,
                                              std::size_t auth_index) const {
  const std::string place = place_of(peer, target, auth_index);
  const auto found = rails_.find(place);
  if (answers_.contains(place) || (found != rails_.end() && found->second->state() == Errc::ok)) return {};
  std::vector<std::string> tags;
  for (const RailLink& link : rails_to(peer, target, auth_index)) tags.push_back(link.tag);
  if (tags.empty()) return {};
  return [policy = options_.rail_policy, id, tags = std::move(tags)] { return policy(id, tags); };
}

void LinkedEndpoint::answer(const Name& peer, std::uint16_t target, std::size_t auth_index,
                            const std::vector<double>& shares) {
  answers_.insert_or_assign(place_of(peer, target, auth_index), shares);
}

// How a peer is reached, and why not over links that would have been better.
struct LinkedEndpoint::Way {
  std::unique_ptr<Path> path;
  std::string links;  // that carry it
  std::string passed_over;

  void pass(const Opened& link, const std::string& why) {
    passed_over.append(passed_over.empty() ? "" : "; ").append(link.tag + " (" + why + ")");
  }
};

std::unique_ptr<Path> LinkedEndpoint::connect(PeerId id, const Name& peer, std::uint16_t target,
                                              std::size_t auth_index) {
  Way way = way_to({id, peer, target, auth_index});
  if (!way.passed_over.empty() && services_.link_log)
    services_.link_log->fell_back(id, way.links, way.passed_over);
  return std::move(way.path);
}

LinkedEndpoint::Way LinkedEndpoint::way_to(const RailsParameters::Destination& to) {
  Way way;
  Reasons reasons;
  std::vector<const Opened*> reached;  // network links
  const auto connect_over = [&](const Opened& link) {
    try {
      way.path = link.endpoint->connect(to.peer, to.name, to.target, to.auth_index);
      way.links = link.tag;
      return true;
    } catch (const std::runtime_error& error) {  // Error, or std::system_error: out of descriptors
      reasons.add(error);
      way.pass(link, error.what());
      return false;
    }
  };
  for (const Opened& link : links_) {
    const Reach reach = look(*link.endpoint, to.name, to.target, to.auth_index);
    if (reach.ok && link.network) {
      reached.push_back(&link);
    } else if (!reach.ok) {
      reasons.add(reach.why, reach.error);
      // Behind a network link that is taken, another one would be a rail, if the peer has it as well.
      if (!reach.expected && (reached.empty() || (link.network && link.named_in(to.name, to.target))))
        way.pass(link, reach.why);
    } else if (reached.empty() && connect_over(link)) {
      return way;
    }
  }
  if (auto rails = rails_to(to.name, to.target, to.auth_index); !rails.empty()) {
    way.path = connect_rails(to, rails);
    for (const Opened* const link : reached)
      if (std::ranges::find(rails, link->tag, &RailLink::tag) != rails.end())
        way.links.append(way.links.empty() ? "" : "+").append(link->tag);
    return way;
  }
  if (std::ranges::any_of(reached, [&](const Opened* link) { return connect_over(*link); })) return way;
  throw Error(reasons.error, "no link reaches peer " + std::to_string(to.peer) + ": " + reasons.text);
}

std::unique_ptr<Path> LinkedEndpoint::connect_rails(const RailsParameters::Destination& to,
                                                    std::vector<RailLink>& links) {
  const std::string place = place_of(to.name, to.target, to.auth_index);
  if (const auto found = rails_.find(place); found != rails_.end() && found->second->state() == Errc::ok) {
    found->second->known_as(to.peer);
    return std::make_unique<RailedPath>(found->second);
  }
  weigh(links, place);
  if (rails_.size() >= sweep_at_) {  // now and then rails are dropped whose handles are gone
    std::erase_if(rails_, [](const auto& entry) {
      const auto& [name, some] = entry;
      return some->forgotten() && some.use_count() == 1;
    });
    sweep_at_ = 2 * rails_.size() + 64;
  }
  FlowId flow{random_u64(), 1};
  const auto [found, fresh] = rails_.try_emplace(place);
  std::shared_ptr<Rails>& entry = found->second;
  if (!fresh) flow = {entry->flow().peer, entry->flow().epoch + 1};
  try {
    make_room(ended_);
    auto rails = new_rails(to, flow, links);
    if (!fresh) ended_.push_back(std::move(entry));
    entry = std::move(rails);
  } catch (...) {
    if (fresh) rails_.erase(found);
    throw;
  }
  has_work(*entry);
  return std::make_unique<RailedPath>(entry);
}

// Gives the links the shares that the user's code gave them, if it was asked.
void LinkedEndpoint::weigh(std::vector<RailLink>& links, const std::string& place) {
  const auto answer = answers_.extract(place);
  if (!answer || answer.mapped().empty()) return;
  const std::vector<double>& weights = answer.mapped();
  if (weights.size() != links.size() || !std::ranges::all_of(weights, [](double w) { return w >= 0; }) ||
      std::ranges::all_of(weights, [](double w) { return w == 0; }))
    throw Error(Errc::invalid, "rail_policy returned " + std::to_string(weights.size()) + " weights for " +
                                   std::to_string(links.size()) +
                                   " rails; it must return one for each, none below 0 and one above");
  for (std::size_t i = 0; i < links.size(); ++i) links[i].weight = weights[i];
  std::erase_if(links, [](const RailLink& link) { return link.weight == 0; });
}

std::shared_ptr<Rails> LinkedEndpoint::new_rails(const RailsParameters::Destination& to, FlowId flow,
                                                 const std::vector<RailLink>& links) {
  return std::make_shared<Rails>(
      RailsParameters{.completions = services_.completions,
                      .slice = services_.slice,
                      .peer_deadline = options_.peer_deadline,
                      .clock = [] { return Clock::now(); },
                      .attended = [this] { return Clock::time_point(looks_.attended()); },
                      .on_work = [this](Rails& some) { has_work(some); },
                      .on_watch = [this] { looks_.start(Rails::kLook); },
                      .on_lost =
                          [this](const Loss& loss) {
                            if (loss.type == EventType::peer_lost) services_.on_path_ended();
                            services_.events.tell_lost(loss);
                          },
                      .preferred = flows_.message_link(to.peer),
                      .peers = services_.peers,
                      .flow = flow,
                      .to = to},
      links);
}

// While progress() runs it will serve the rails. At other times nobody may, so the timer does.
void LinkedEndpoint::has_work(Rails& rails) noexcept {
  if (work_.push_back(rails) && !serving_) timer_->no_later_than(Clock::now());
}

// A path of a link has ended. Rails that had nothing under way on it learn of it from nobody else.
void LinkedEndpoint::look_soon() noexcept {
  time_is_up_ = true;
  if (!serving_) timer_->no_later_than(Clock::now());
}

bool LinkedEndpoint::progress() noexcept {
  bool moved = false;
  const std::size_t sides = links_.size() + 1;  // all rails count as one; each side is first in its turn
  const std::size_t first = turns_++ % sides;
  if (first == links_.size() && !work_.empty()) moved |= serve_rails();
  serving_ = true;
  for (std::size_t i = 0; i < links_.size(); ++i)
    moved |= links_[(first + i) % links_.size()].endpoint->progress();
  serving_ = false;
  if (!work_.empty() || time_is_up_) moved |= serve_rails();
  return moved;
}

bool LinkedEndpoint::arm() noexcept {
  if ((!work_.empty() || time_is_up_) && serve_rails()) return false;
  return std::ranges::all_of(links_, [](const Opened& link) { return link.endpoint->arm(); });
}

bool LinkedEndpoint::serve_rails() noexcept {
  serving_ = true;
  bool moved = false;
  // Rails for which the slice does not suffice come first in the next turn.
  LinkedList<Rails, RailsWork> todo;
  todo.take(work_);
  while (!todo.empty() && !services_.slice.spent()) {
    Rails& rails = todo.pop_front();
    moved |= rails.pump();
    tick(rails);
  }
  todo.take(work_);
  work_.take(todo);
  if (std::exchange(time_is_up_, false)) {
    for (const auto& [place, rails] : rails_) tick(*rails);
    expire();
  }
  std::erase_if(ended_, [](const auto& rails) { return rails->idle() && rails.use_count() == 1; });
  serving_ = false;
  if (!work_.empty() || time_is_up_) timer_->no_later_than(Clock::now());
  return moved || !work_.empty();
}

void LinkedEndpoint::tick(Rails& rails) noexcept {
  if (!rails.at_rest()) timer_->no_later_than(rails.tick());
}

void LinkedEndpoint::expire() noexcept {
  if (!flows_.expire(expiry_.attended())) expiry_.stop();
}

// The tick of looks_, whose time goes on only while this process is at work.
void LinkedEndpoint::on_look() noexcept {
  bool watched = false;
  for (const auto& [place, rails] : rails_) {
    tick(*rails);
    watched |= rails->watched();
  }
  if (!watched) looks_.stop();
}

void LinkedEndpoint::end_removed_keys() noexcept {
  for (const Opened& link : links_) link.endpoint->end_removed_keys();
}

void LinkedEndpoint::forget(std::uint32_t region) noexcept {
  for (const Opened& link : links_) link.endpoint->forget(region);
}

}  // namespace fab::lnx

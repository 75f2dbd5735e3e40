#include "fabric/context/path_table.h"

#include <exception>
#include <new>
#include <string>

#include "base/bytes/printable.h"
#include "fabric/completion/link_log.h"

namespace fab {
namespace {

std::uint64_t named(const PeerTarget& target) noexcept {
  return (std::uint64_t{target.rx_context} << kPeerIndexBits) | target.index;
}

PeerTarget target_of(std::uint64_t name) noexcept {
  return {.index = name & kMaxPeers, .rx_context = static_cast<std::uint32_t>(name >> kPeerIndexBits)};
}

}  // namespace

// What is left of a path that ended: its counts. All else, the descriptors above all, goes at once, even if
// the next post to the peer comes late or never.
class PathTable::EndedPath final : public Path {
 public:
  explicit EndedPath(const Path& former)
      : state_(former.state()), counts_(former.counts()), report_(former.report()) {}
  std::size_t post(std::span<const Transfer>) noexcept override { return 0; }  // nobody posts to one
  Errc state() const noexcept override { return state_; }
  bool idle() const noexcept override { return true; }
  PathCounts counts() const noexcept override { return counts_; }
  std::uint64_t oldest() const noexcept override { return counts_.posted + 1; }
  PathReport report() const override { return report_; }

 private:
  const Errc state_;
  const PathCounts counts_;
  const PathReport report_;
};

void PathTable::close() noexcept {
  last_path_ = nullptr;
  paths_.clear();
  named_paths_.clear();
  replaced_.clear();
  endpoint_ = nullptr;
}

void PathTable::leave_to_parent() noexcept {
  const auto forget = [](Peer& peer) { [[maybe_unused]] auto* const path = peer.path.release(); };
  for (Peer& peer : paths_) forget(peer);
  for (auto& [name, peer] : named_paths_) forget(peer);
  for (auto& [target, peer] : replaced_) forget(peer);
}

template <class Visit>
void PathTable::visit(Visit&& visit) {
  for (std::uint64_t i = 0; i < paths_.size(); ++i)
    if (paths_[i].path) visit(PeerTarget{.index = i}, paths_[i]);
  for (auto& [name, there] : named_paths_)
    if (there.path) visit(target_of(name), there);
}

PathTable::Peer* PathTable::known(const PeerTarget& target) {
  if (target.rx_context == 0) return target.index < paths_.size() ? &paths_[target.index] : nullptr;
  const auto found = named_paths_.find(named(target));
  return found == named_paths_.end() ? nullptr : &found->second;
}

PathTable::Peer& PathTable::place_of(const PeerTarget& target) {
  if (target.rx_context != 0) return named_paths_[named(target)];
  if (target.index >= paths_.size()) paths_.resize(target.index + 1);
  return paths_[target.index];
}

// --- opening

// Finds the path, and remembers it for the next call of to().
void PathTable::remember(PeerId peer, std::uint64_t changes) {
  last_path_ = nullptr;
  last_path_ = &find(peer);
  last_peer_ = peer;
  last_changes_ = changes;
}

Path& PathTable::find(PeerId peer) {
  const PeerTarget target = handles_.target(peer);
  const std::uint32_t generation = handles_.peers().generation(target.index);
  if (const Peer* there = known(target))
    if (there->path && there->generation == generation && there->path->state() == Errc::ok)
      return *there->path;
  if (!endpoint_) throw Error(Errc::closed, "the endpoint is closed");
  if (generation == 0)
    throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(peer)) +
                                   " is not in the address vector (never inserted, or removed)");
  Peer& place = place_of(target);
  // The path is another peer's by now, or is lost; a new one may work.
  if (place.path && place.path->state() == Errc::ok && !place.path->idle())
    std::swap(replaced_.emplace_back(target, Peer{}).second, place);
  place.path.reset();
  place.ended = false;
  place.path = connect(target);
  place.generation = generation;
  place.serial = ++opened_;
  return *place.path;
}

std::unique_ptr<Path> PathTable::connect(const PeerTarget& target) {
  Name name = handles_.peers().name(target.index);
  const std::uint16_t context = handles_.context_of(target, name);
  const std::size_t auth_index = handles_.key_to(target.index);
  const PathPolicy* const policy = endpoint_->policy();
  if (auto question = policy ? policy->question(target.index, name, context, auth_index) : nullptr) {
    if (PathQuestion::pending(this, target.index))
      throw Error(Errc::invalid,
                  "rail_policy was called for peer " + std::to_string(target.index) +
                      " and uses that peer itself; it must return before the peer can be used");
    throw PathQuestion(std::move(question), target.index, std::move(name), context, auth_index);
  }
  try {
    auto path = endpoint_->connect(target.index, name, context, auth_index);
    tell_opened(target.index, name, context, auth_index, *path);
    return path;
  } catch (const Error& error) {
    if (error.code() != Errc::unreachable) throw;
    std::string links;
    for (const Part& part : name.parts)
      if (part.context == 0) links.append(links.empty() ? "" : ", ").append(printable(part.link));
    throw Error(Errc::unreachable, std::string(error.what()) + " (links of the peer: " + links + ")");
  }
}

void PathTable::tell_opened(PeerId peer, const Name& name, std::uint16_t context, std::size_t auth_index,
                            const Path& path) noexcept try {
  if (log_ && log_->all())
    log_->opened(peer, path.report().link, endpoint_->reaches(name, context, auth_index).why);
} catch (const std::exception&) {  // descriptors or memory have run out: the path stands all the same
  return;
}

// --- what is under way

std::uint64_t PathTable::standing(PeerId peer) {
  const PeerTarget target = handles_.target(peer);
  const Peer* there = known(target);
  const bool stands = there && there->path && there->path->state() == Errc::ok &&
                      there->generation == handles_.peers().generation(target.index);
  return stands ? there->serial : 0;
}

PathCounts PathTable::counts(PeerId peer) {
  const Peer* there = known(handles_.parts(peer));
  return there && there->path ? there->path->counts() : PathCounts{};
}

std::optional<PathReport> PathTable::last_report(PeerId peer) {
  const Peer* there = known(handles_.parts(peer));
  if (!there || !there->path) return std::nullopt;
  return there->path->report();
}

std::vector<FlushGoal> PathTable::flush_goals(PeerId peer) {
  std::vector<FlushGoal> goals;
  const std::uint64_t only = handles_.parts(peer).index;
  visit([&](const PeerTarget& target, const Peer& there) {
    if (peer == kNoPeer || only == target.index)
      goals.push_back({target, there.serial, there.path->counts().posted});
  });
  for (const auto& [target, there] : replaced_)
    if (peer == kNoPeer) goals.push_back({target, there.serial, there.path->counts().posted});
  return goals;
}

// The path that is meant. Null: it has gone, and had settled all that it took.
const Path* PathTable::find(const FlushGoal& goal) {
  const Peer* there = known(goal.peer);
  if (there && there->path && there->serial == goal.path) return there->path.get();
  for (const auto& [target, former] : replaced_)
    if (former.serial == goal.path) return former.path.get();
  return nullptr;
}

bool PathTable::reached(std::vector<FlushGoal>& goals) {
  while (!goals.empty()) {
    const Path* const path = find(goals.back());
    if (path && path->oldest() <= goals.back().last) return false;
    goals.pop_back();
  }
  return true;
}

// --- paths that are not needed any more

void PathTable::end(Peer& peer) noexcept {
  try {
    peer.path = std::make_unique<EndedPath>(*peer.path);
    peer.ended = true;
  } catch (const std::bad_alloc&) {
    peer.path.reset();  // the counts are lost
    peer.ended = false;
  }
}

// Ends the path to a peer that was removed. False: something is under way on it.
bool PathTable::leave(const PeerTarget& target) noexcept {
  Peer* const there = known(target);
  if (!there || !there->path || there->generation == handles_.peers().generation(target.index)) return true;
  if (!there->path->idle()) return false;
  there->path.reset();
  return true;
}

void PathTable::let_go(bool path_ended) noexcept {
  last_path_ = nullptr;
  if (path_ended)
    visit([](const PeerTarget&, Peer& there) {
      if (!there.ended && there.path->state() != Errc::ok) end(there);
    });
  std::erase_if(leaving_, [this](const PeerTarget& target) { return leave(target); });
  std::erase_if(replaced_, [](const auto& former) {
    return former.second.path->state() != Errc::ok || former.second.path->idle();
  });
}

void PathTable::removed(std::uint64_t index) noexcept {
  last_path_ = nullptr;
  const auto goes = [this](const PeerTarget& target) {
    try {
      if (!leave(target)) leaving_.push_back(target);
    } catch (const std::bad_alloc&) {
      return;  // the path goes when another peer gets its place
    }
  };
  goes({.index = index});
  for (const auto& [name, there] : named_paths_)
    if (target_of(name).index == index) goes(target_of(name));
}

}  // namespace fab

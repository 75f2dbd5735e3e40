#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fabric/context/path_question.h"
#include "fabric/context/peer_handles.h"
#include "fabric/provider.h"
#include "fabric/types/peer_id.h"

namespace fab {

// Remembers the path that a post found full. A caller that tries again passes the same FullPath. Once that
// path has ended, nothing more is posted: the post shares the fate of all that the path had taken. Otherwise
// it might wait for one path after another, for each until the peer counts as lost.
struct FullPath {
  std::uint64_t path = 0;  // serial number of the path that was full
  bool ended = false;
};

// What has to settle before a peer is flushed.
struct FlushGoal {
  PeerTarget peer;
  std::uint64_t path;  // serial number of the path
  std::uint64_t last;  // number of the last transfer that has to settle, with all before it
};

// The paths of one context: which peer has one, which of them are lost, and which stay only until nothing is
// under way on them. Used under the context's lock.
class PathTable final {
 public:
  explicit PathTable(const PeerHandles& handles)
      : handles_(handles), changes_(handles.peers().change_count()) {}
  PathTable(const PathTable&) = delete;
  PathTable& operator=(const PathTable&) = delete;

  // Paths are opened from here on; `endpoint` stays until close(). `log`, if any, is told of each path, if it
  // wants to.
  void open(Endpoint& endpoint, LinkLog* log) noexcept {
    endpoint_ = &endpoint;
    log_ = log;
  }
  // Ends all paths: what is outstanding on them settles with an error.
  void close() noexcept;
  // In a child of fork() the paths are the parent's: they are forgotten, and not destroyed.
  void leave_to_parent() noexcept;

  // The path to the peer, which is opened on first use, and anew where it was lost or the handle is another
  // peer's by now. Throws Error, or PathQuestion where the user has to be asked first.
  Path& to(PeerId peer) {
    const std::uint64_t changes = changes_.load(std::memory_order_acquire);
    if (peer != last_peer_ || changes != last_changes_ || !last_path_ || last_path_->state() != Errc::ok)
      remember(peer, changes);
    return *last_path_;
  }
  // Posts a prefix of `slice`, and returns its length. Throws as to().
  std::size_t post(PeerId peer, std::span<const Transfer> slice, FullPath& full) {
    if (full.path != 0 && standing(peer) != full.path) {
      full.ended = true;
      return 0;
    }
    const std::size_t taken = to(peer).post(slice);
    full.path = taken ? 0 : standing(peer);
    return taken;
  }
  // What the open path, or the one that ended last, says; zero, or nothing, if there was none.
  PathCounts counts(PeerId peer);
  std::optional<PathReport> last_report(PeerId peer);

  // What has to settle before `peer` (kNoPeer: every peer) is flushed, of what has been posted so far.
  std::vector<FlushGoal> flush_goals(PeerId peer);
  // Drops goals that are reached, from the end of the list on. True if none is left.
  bool reached(std::vector<FlushGoal>& goals);

  // The peer was taken out of the address vector: its paths go as soon as nothing is under way on them.
  void removed(std::uint64_t index) noexcept;
  // To be called after a turn that moved something: ends paths that only waited until nothing is under way on
  // them. With `path_ended` (EndpointServices::on_path_ended) ends paths that were lost as well.
  void tidy(bool path_ended) noexcept {
    if (path_ended || !leaving_.empty() || !replaced_.empty()) let_go(path_ended);
  }

 private:
  struct Peer {
    std::unique_ptr<Path> path;
    std::uint32_t generation = 0;
    bool ended = false;        // `path` is an EndedPath
    std::uint64_t serial = 0;  // tells a path from an earlier one to the same peer
  };
  class EndedPath;
  Peer* known(const PeerTarget& target);
  Peer& place_of(const PeerTarget& target);
  Path& find(PeerId peer);
  void remember(PeerId peer, std::uint64_t changes);
  std::unique_ptr<Path> connect(const PeerTarget& target);
  void tell_opened(PeerId peer, const Name& name, std::uint16_t context, std::size_t auth_index,
                   const Path& path) noexcept;
  std::uint64_t standing(PeerId peer);  // Peer::serial of the path that can be used now; 0: there is none
  const Path* find(const FlushGoal& goal);
  template <class Visit>
  void visit(Visit&& visit);  // with the target and the Peer
  static void end(Peer& peer) noexcept;
  bool leave(const PeerTarget& target) noexcept;
  void let_go(bool path_ended) noexcept;

  const PeerHandles& handles_;
  const std::atomic<std::uint64_t>& changes_;  // of the address vector; read before each post
  Endpoint* endpoint_ = nullptr;               // null: closed
  LinkLog* log_ = nullptr;
  std::vector<Peer> paths_;                              // by index
  std::unordered_map<std::uint64_t, Peer> named_paths_;  // to receive contexts other than the first
  // While something is under way: paths whose place another peer has now, and paths to peers that were
  // removed.
  std::vector<std::pair<PeerTarget, Peer>> replaced_;
  std::vector<PeerTarget> leaving_;
  std::uint64_t opened_ = 0;
  // The path that was asked for last, as long as the address vector does not change.
  PeerId last_peer_ = kNoPeer;
  Path* last_path_ = nullptr;
  std::uint64_t last_changes_ = 0;
};

}  // namespace fab

#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/locks/overlap_watch.h"
#include "base/locks/yielding_mutex.h"
#include "base/network/poller.h"
#include "base/process/process.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/completion/event_queue.h"
#include "fabric/completion/operation.h"
#include "fabric/memory/post_rules.h"
#include "fabric/memory/slice.h"
#include "fabric/messages/receive_queue.h"
#include "fabric/provider.h"
#include "fabric/types/peer_id.h"

namespace fab {

// One transmit and receive side with one lock. Threads that use different contexts share nothing on the fast
// path; threads that use one are safe. Whoever waits drives it: the first waiter leads (polls, then sleeps in
// the kernel), the others follow. While somebody leads, the domain's progress thread leaves the context
// alone.
class Context final : public PeerWatcher {
 public:
  struct Parameters {
    std::uint16_t index = 0;  // within the endpoint that the user opened
    std::uint16_t cell = 0;   // within the domain
    AuthKeys keys = AuthKeys(1);
    const PostRules* rules;  // outlives the context
    bool exempt = false;     // from what the domain's mr_mode asks of programs
    unsigned rx_bits = 0;    // of handles: AddressVector's receive contexts
    std::uint64_t max_group_id = kMaxGroupId;
    bool directed_receive = true;  // receives may name their source
    bool shared_receives = true;   // false: they must (LNX-48)
    std::shared_ptr<AddressVector> peers;
    std::shared_ptr<CompletionQueue> completions;
    std::function<void()> wake_domain;
  };
  Context(Domain& domain, Parameters parameters);
  ~Context() override;

  std::uint16_t index() const noexcept { return parameters_.index; }
  std::uint16_t cell() const noexcept { return parameters_.cell; }
  std::vector<Part> parts() const;
  std::vector<std::string> socket_names() const;
  AddressVector& peers() noexcept { return *parameters_.peers; }
  CompletionQueue& completions() noexcept { return *parameters_.completions; }

  // Posts a prefix of `batch` to `peer`, opening the path on first use; returns its length. Others who want
  // the lock get it after each slice. Throws
  // Error(invalid) for an unknown handle or for local memory that breaks the rules of the domain,
  // Error(unreachable) where no link leads there and Error(closed)
  // after close(); nothing was posted then.
  //
  // Who found a path full and tries again passes the same Room. Once that path has ended, nothing more is
  // posted: the post shares the fate of all that the path had taken, instead of waiting for one path after
  // another, each for as long as it takes until a peer counts as lost.
  struct Room {
    std::uint64_t path = 0;  // Peer::serial of the one that was full
    bool ended = false;
  };
  std::size_t post(PeerId peer, std::span<const Transfer> batch, Room& room);
  std::size_t post(PeerId peer, std::span<const Transfer> batch) {
    Room room;
    return post(peer, batch, room);
  }
  // The same for what is no more than a slice, unless somebody holds the lock or the user has to be asked.
  std::optional<std::size_t> try_post(PeerId peer, std::span<const Transfer> batch, Room& room);
  // Settles parts of an operation that were never posted.
  void abandon(Operation& operation, std::uint32_t parts, Errc error);
  // Settles a part of an operation that moved without this context.
  void settle(Operation& operation, Errc error, std::uint64_t bytes);
  std::uint64_t resolve(PeerId peer, const RemoteRegion& region);
  PathCounts counts(PeerId peer);  // of the path now open, or that ended last; zero if there was none
  PathReport report(PeerId peer);  // opens the path if need be
  Reach reaches(PeerId peer) const;
  // The endpoint's key that the address vector has under this AddressVector::auth(); throws Error(invalid).
  const AuthKey& key_under(std::uint32_t auth) const;
  // What a handle means here: throws Error(invalid) for a group or receive context that cannot be.
  PeerTarget target(PeerId peer) const;

  // --- messages; ReceiveQueue says what they do. Throw Error(closed) after close(). Receives from anybody
  // throw Error(not_supported_here) without shared receives.
  void receive(const Receive& receive);
  bool try_receive(const Receive& receive);  // false: somebody holds the lock, nothing was done
  std::uint64_t max_group_id() const noexcept { return parameters_.max_group_id; }
  // As ReceiveQueue::cancel and cancel_context.
  bool cancel(const Operation& operation);
  bool cancel(std::uint64_t context);
  // A message that waits: what it says, and its number if it was claimed.
  struct Waiting {
    MessageHead head;
    Source source{};
    std::uint64_t claim = 0;
  };
  enum class Look { only, claim, discard };
  std::optional<Waiting> look(const MatchRule& rule, Look look);
  // False: `claim` is not the number of a claimed message, or no longer.
  bool receive_claimed(std::uint64_t claim, const Receive& receive);
  bool discard_claimed(std::uint64_t claim);
  ReceiveQueue::Sizes message_sizes() const;
  LinkBook link_counters() const;  // of the links that had messages to carry

  // Drives the context until `done()` (evaluated with the lock held) or the deadline; true if done. Callable
  // from any thread.
  bool wait(const std::function<bool()>& done, Deadline deadline);
  // What has to settle for `peer` (kNoPeer: for all) to be flushed: everything posted before the call, so
  // that flushing ends under endless posting. flushed() waits for it, in as many calls as the caller likes;
  // false: out of time.
  struct FlushGoal {
    PeerTarget peer;
    std::uint64_t path;     // Peer::serial
    std::uint64_t settled;  // PathCounts::settled to reach
  };
  std::vector<FlushGoal> flush_goals(PeerId peer);
  bool flushed(std::vector<FlushGoal>& goals, Deadline deadline);
  // Moves what can be moved without waiting; false if nothing moved or if somebody else is driving. Who calls
  // it all the time need not `look` at the poller, which is a system call, in each turn.
  bool progress(bool look = true);
  // From now on `events` are told of peers and links that are lost; null: nobody is.
  void bind(std::shared_ptr<EventQueue> events);
  // Wakes a leader that sleeps; callable from any thread, with or without the lock.
  void kick() noexcept;
  // Runs `work` with the lock held, unless the context is closed.
  void locked(const std::function<void(Endpoint&)>& work);
  // The path to the peer goes as soon as nothing is under way on it.
  void removed(std::uint64_t index) noexcept override;
  // Ends the endpoint: what is outstanding settles with an error. Idempotent.
  void close();

  // --- for the progress thread
  int poll_fd() const noexcept { return poller_.fd(); }
  // Before it sleeps on poll_fd(): whether it may. Neither where there is work nor while somebody holds the
  // lock.
  enum class Rest { allowed, work_left, in_use };
  Rest arm() noexcept;
  enum class Driver { nobody, spinning_caller, staying_caller };
  Driver driver() noexcept;  // who drives now, or did since the last call; the thread is awake
  // Whether what comes still wakes the thread, since arm() allowed it to sleep.
  bool armed() const noexcept { return armed_.load(std::memory_order_relaxed); }
  // Called, with the lock held, when a caller that slept or stayed for long stops driving, and when one took
  // what would have woken the thread. After the call the
  // former one is not called any more.
  void set_hand_back(std::function<void()> hand_back);

  // Asks for on_notice, which whoever makes the progress calls after unlocking. Under the lock.
  void request_notice() noexcept { notice_ = true; }
  std::function<void()> on_notice;  // set before first use

 private:
  struct Peer {
    std::unique_ptr<Path> path;
    std::uint32_t generation = 0;
    bool ended = false;        // `path` is an EndedPath
    std::uint64_t serial = 0;  // tells a path from an earlier one to the same peer
  };
  using Mutex = YieldingMutex<std::mutex>;
  using Lock = std::unique_lock<Mutex>;
  // Holds the lock; on the way out, also by an exception, tells those whom the work concerns.
  class Turn;
  void check_process() const;
  void check_source(const Receive& receive) const;
  void check_local(const Receive& receive) const;
  Peer* known(const PeerTarget& target);
  std::uint16_t context_of(const PeerTarget& target, const Name& peer) const noexcept;
  std::size_t key_to(PeerId index) const;  // under which it is reached; throws
  // What the user has to be asked before there can be a path.
  struct Unasked {
    Endpoint::Question question;
    PeerId peer;
    Name name;
    std::uint16_t target;
    std::size_t key;
  };
  // What find_path() throws then.
  struct Unanswered : std::exception {
    explicit Unanswered(Unasked what) : unasked(std::move(what)) {}
    Unasked unasked;
  };
  // Calls what uses a path, without the lock, and asks the user as often as that takes.
  template <class Call>
  auto asking(const Call& call);
  void ask(const Unasked& unasked);
  Path& path_to(PeerId peer);
  Path& find_path(PeerId peer);
  std::size_t post_slice(PeerId peer, std::span<const Transfer> slice, Room& room);
  std::uint64_t standing(PeerId peer);  // Peer::serial of the path that can be used now; 0: there is none
  class EndedPath;
  template <class Visit>
  void visit_paths(Visit&& visit);  // with the target and the Peer
  static void end(Peer& peer) noexcept;
  const Path* find(const FlushGoal& goal);
  void linger(Lock& lock);
  bool let_go(const PeerTarget& target) noexcept;
  void tidy() noexcept;
  // `look`: also at the poller.
  bool move(bool look = true) noexcept;
  bool look_at_poller() noexcept;
  void wake_sleeper() noexcept;
  bool owes_lock() noexcept;
  void count_caller(int difference) noexcept;
  void lead(Lock& lock, const std::function<bool()>& done, Deadline deadline);
  void unlock_and_notify(Lock& lock);

  const Parameters parameters_;
  const std::uint32_t fork_generation_ = fork_generation();
  Poller poller_;
  Waker waker_{poller_};

  OverlapWatch moving_;  // of what the lock keeps apart, for tests

  mutable Mutex mutex_;  // guards all down to spin_
  Slice slice_;
  std::uint64_t moved_before_others_ = 0;  // bytes, in turns since others began to wait for the lock
  LinkBook links_;
  EventOutlet events_;
  ReceiveQueue receives_;
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<Peer> paths_;                              // by index
  std::unordered_map<std::uint64_t, Peer> named_paths_;  // to receive contexts other than the first, likewise
  std::vector<std::pair<PeerTarget, Peer>>
      replaced_;  // by paths to other peers, when something was under way
  LinkedList<Lingerer, Lingering> lingerers_;
  std::uint64_t paths_opened_ = 0;
  bool path_ended_ = false;          // EndpointServices::path_ended
  std::vector<PeerTarget> leaving_;  // removed, when something was still under way
  // The path that was asked for last, as long as the address vector does not change.
  PeerId last_peer_ = kNoPeer;
  Path* last_path_ = nullptr;
  std::uint64_t last_changes_ = 0;
  std::condition_variable_any followers_wake_;
  unsigned followers_ = 0;
  bool led_ = false;
  bool notice_ = false;
  unsigned turns_ = 0;        // of move() since the poller was looked at
  unsigned clock_turns_ = 4;  // of a leader between looks at the clock
  std::function<void()> hand_back_;
  std::chrono::nanoseconds poller_period_;  // between looks at the poller; follows what they found
  std::chrono::nanoseconds spin_;           // how long a leader polls before it sleeps; follows what paid off

  std::atomic<bool> asleep_{false};
  std::atomic<bool> staying_{false};       // a leader that will call hand_back_
  std::atomic<std::uint32_t> callers_{0};  // threads in wait()
  std::atomic<bool> driven_{false};        // by callers, since driver() was asked
  std::atomic<bool> armed_{false};
};

}  // namespace fab

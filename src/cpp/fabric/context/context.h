#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/lifetime.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/completion/event_queue.h"
#include "fabric/completion/operation.h"
#include "fabric/context/driver.h"
#include "fabric/context/inbox.h"
#include "fabric/context/path_table.h"
#include "fabric/context/peer_handles.h"
#include "fabric/memory/post_rules.h"
#include "fabric/provider.h"
#include "fabric/types/peer_id.h"

namespace fab {

// One transmit and receive side with one lock, the driver's. Threads that use different contexts share
// nothing on the fast path; several threads may use one context. A Context puts four things together: the
// Driver says who moves it, the PathTable has the ways to its peers, the Inbox has what comes from them, and
// the PeerHandles say what their handles mean.
class Context final : public PeerWatcher, private Tidier {
 public:
  struct Parameters {
    std::uint16_t index = 0;  // within the endpoint that the user opened
    std::uint16_t slot = 0;   // number within the domain
    const PostRules* rules;   // outlives the context
    bool exempt = false;      // true: the domain's mr_mode demands nothing of the program
    unsigned rx_bits = 0;     // bits of a handle for the receive context
    std::uint64_t max_group_id = kMaxGroupId;
    bool directed_receive = true;  // receives may name their source
    bool shared_receives = true;   // false: receives must name their source
    std::shared_ptr<AddressVector> peers;
    std::shared_ptr<CompletionQueue> completions;
    std::function<void()> wake_domain;
    LinkLog* link_log = nullptr;  // null: nobody is told which link carries which peer
  };
  Context(Domain& domain, Parameters parameters, AuthKeys keys = AuthKeys(1));
  ~Context() override;

  std::uint16_t slot() const noexcept { return parameters_.slot; }
  AddressVector& peers() noexcept { return *parameters_.peers; }
  const PeerHandles& handles() const noexcept FAB_LIFETIME_BOUND { return handles_; }
  Inbox& inbox() noexcept FAB_LIFETIME_BOUND { return inbox_; }
  Driver& driver() noexcept FAB_LIFETIME_BOUND { return driver_; }
  std::vector<Part> parts() const;

  // Posts a prefix of `batch` to `peer`, opening the path on first use; returns the prefix's length. Others
  // who want the lock get it after each slice. Throws Error(invalid) for an unknown handle or for local
  // memory that breaks the rules of the domain, Error(unreachable) where no link leads there and
  // Error(closed) after close(); nothing was posted then.
  using FullPath = fab::FullPath;
  std::size_t post(PeerId peer, std::span<const Transfer> batch, FullPath& full);
  std::size_t post(PeerId peer, std::span<const Transfer> batch) {
    FullPath full;
    return post(peer, batch, full);
  }
  // Posts as post() does. No value, and nothing was posted, if `batch` is more than a slice, if somebody
  // holds the lock, or if the user has to be asked.
  std::optional<std::size_t> try_post(PeerId peer, std::span<const Transfer> batch, FullPath& full);
  // To be called after `fruitless` posts in a row that found the path full: makes one turn of progress, or
  // sleeps briefly once that has not helped for long.
  void make_room(unsigned fruitless);
  // Settles `transfers` of an operation that were never posted.
  void abandon(Operation& operation, std::uint32_t transfers, Errc error);
  // Settles one part of an operation whose bytes moved without this context.
  void settle(Operation& operation, Errc error, std::uint64_t bytes);
  void hint(PeerId peer, const RemoteRegion& region);  // Path::hint; opens the path if need be
  // What the open path, or the one that ended last, says; zero, or nothing, if there was none.
  PathCounts counts(PeerId peer);
  std::optional<PathReport> last_report(PeerId peer);
  PathReport report(PeerId peer);  // opens the path if need be
  Reach reaches(PeerId peer) const;

  // These do what Driver says.
  bool wait(const std::function<bool()>& done, Deadline deadline) { return driver_.wait(done, deadline); }
  bool progress(bool look = true) { return driver_.progress(look); }
  // What has to settle before `peer` (kNoPeer: every peer) is flushed: everything that was posted before the
  // call, so that flushing ends while others go on posting. flushed() waits for it, in as many calls as the
  // caller likes; false: out of time.
  std::vector<FlushGoal> flush_goals(PeerId peer);
  bool flushed(std::vector<FlushGoal>& goals, Deadline deadline);
  // From now on `events` is told of peers and links that are lost; null: nobody is told.
  void bind(std::shared_ptr<EventQueue> events);
  // Gives the key of that number the secrets of `key`, which gets the former ones; false: it has no such key.
  // By one thread at a time; handles().keys() shows them.
  bool swap_secrets(AuthKey& key) noexcept;
  // Runs `work` with the lock held, unless the context is closed. Callbacks that come due are left to the
  // next turn of whoever drives.
  void locked(const std::function<void(Endpoint&)>& work);
  // Reads the notices of puts that were done before the call. Callbacks: as in locked().
  void take_notices();
  // Ends the endpoint: what is outstanding settles with an error. Idempotent.
  void close();

 private:
  void removed(std::uint64_t index) noexcept override;
  void tidy(bool path_ended) noexcept override {
    driver_.assert_held();
    paths_.tidy(path_ended);
  }

  template <class Call>
  auto asking(const Call& call);
  std::size_t post_slice(PeerId peer, const Slice::Front& slice, FullPath& full) FAB_REQUIRES(driver_);
  void linger() FAB_REQUIRES(driver_);

  const Parameters parameters_;
  AuthKeys keys_;
  const PeerHandles handles_;
  mutable Driver driver_;
  Inbox inbox_;
  PathTable paths_ FAB_GUARDED_BY(driver_);
  EventOutlet events_ FAB_GUARDED_BY(driver_);
  LinkedList<Lingerer, Lingering> lingerers_ FAB_GUARDED_BY(driver_);
  LinkedList<NoticeHolder, Noticing> notice_holders_ FAB_GUARDED_BY(driver_);
  std::unique_ptr<Endpoint> endpoint_ FAB_GUARDED_BY(driver_);  // null: closed
};

}  // namespace fab

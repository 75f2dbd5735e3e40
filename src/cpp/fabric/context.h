#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/deadline.h"
#include "base/poller.h"
#include "fabric/address_vector.h"
#include "fabric/completion_queue.h"
#include "fabric/event_queue.h"
#include "fabric/operation.h"
#include "fabric/provider.h"

namespace fab {

// One transmit and receive side with one lock. Threads that use different contexts share nothing on the fast path; threads that
// use one are safe. Whoever waits drives it: the first waiter leads (polls, then sleeps in the kernel), the others follow. While
// somebody leads, the domain's progress thread leaves the context alone.
class Context final {
 public:
  Context(Domain& domain, std::uint16_t index, std::shared_ptr<AddressVector> peers,
          std::shared_ptr<CompletionQueue> completions, std::shared_ptr<EventQueue> events);
  ~Context();

  std::uint16_t index() const noexcept { return index_; }
  std::vector<Part> parts() const { return endpoint_->parts(); }
  AddressVector& peers() noexcept { return *peers_; }
  CompletionQueue& completions() noexcept { return *completions_; }

  // Posts a prefix of `batch` to `peer`, opening the path on first use; returns its length. Throws Error(invalid) for an
  // unknown handle and Error(unreachable) where no link leads there; nothing was posted then.
  std::size_t post(PeerId peer, std::span<const Transfer> batch);
  std::uint64_t resolve(PeerId peer, const RemoteRegion& region);
  PathCounts counts(PeerId peer);  // zero if no path was opened
  PathReport report(PeerId peer);  // opens the path if need be
  Reach reaches(PeerId peer) const;

  // Drives the context until `done()` (evaluated with the lock held) or the deadline; true if done. Callable from any thread.
  bool wait(const std::function<bool()>& done, Deadline deadline);
  // Moves what can be moved without waiting. False if somebody else is driving.
  bool progress();
  // Wakes a leader that sleeps; callable from any thread, with or without the lock.
  void kick() noexcept;
  // Runs `work` with the lock held.
  void locked(const std::function<void(Endpoint&)>& work);

  // For the progress thread: a descriptor that is readable when there is work, and whether it may sleep on it.
  int poll_fd() const noexcept { return poller_.fd(); }
  bool arm() noexcept;
  // Since the last call: did callers drive the context themselves?
  bool taken_over() noexcept;

  // Called without the lock, by whoever made the progress, after operations whose hook asked for it became done.
  void request_notice() noexcept { notice_ = true; }  // under the lock
  std::function<void()> on_notice;                    // set before first use

 private:
  struct Peer {
    std::unique_ptr<Path> path;
    std::uint32_t generation = 0;
  };
  Path& path_to(PeerId peer);
  bool lead(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done, Deadline deadline);
  void unlock_and_notify(std::unique_lock<std::mutex>& lock);

  const std::uint16_t index_;
  std::shared_ptr<AddressVector> peers_;
  std::shared_ptr<CompletionQueue> completions_;
  std::shared_ptr<EventQueue> events_;
  Poller poller_;
  Waker waker_{poller_};

  mutable std::mutex mutex_;  // guards all below
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<Peer> paths_;  // by handle
  std::condition_variable followers_wake_;
  unsigned followers_ = 0;
  bool led_ = false;
  bool notice_ = false;

  std::atomic<bool> asleep_{false};
  std::atomic<std::uint32_t> callers_{0};  // threads in wait()
  std::atomic<bool> driven_{false};        // by callers, since taken_over()
};

}  // namespace fab

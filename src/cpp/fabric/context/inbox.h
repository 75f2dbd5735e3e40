#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/lifetime.h"
#include "fabric/context/driver.h"
#include "fabric/memory/post_rules.h"
#include "fabric/messages/link_counters.h"
#include "fabric/messages/receive_queue.h"

namespace fab {

// The messages that come to one context, and the receives that wait for them; ReceiveQueue says what each
// call does. Safe from any thread: each call takes a turn of the driver. The calls throw Error(closed) after
// close(), and Error(not_supported_here) for receives from anybody without shared receives.
class Inbox final {
 public:
  struct Rules {
    const PostRules* memory;       // outlives the inbox
    bool exempt = false;           // true: the domain's mr_mode demands nothing of the program
    bool directed_receive = true;  // receives may name their source
    bool shared_receives = true;   // false: receives must name their source
  };
  Inbox(Rules rules, Driver& driver) : rules_(rules), driver_(driver), receives_(rules.directed_receive) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  void receive(const Receive& receive);
  bool try_receive(const Receive& receive);  // false: somebody holds the lock, nothing was done
  // These do what the same functions of ReceiveQueue say. `wanted` is called under the context's lock.
  bool cancel(const Operation& operation);
  bool cancel_oldest(const std::function<bool(const Operation&)>& wanted);
  // A message that waits, and its number if it was claimed.
  struct Waiting {
    MessageHead head;
    Source source{};
    std::uint64_t claim = 0;
  };
  enum class Look { only, claim, discard };
  std::optional<Waiting> look(const MatchRule& rule, Look look);
  // False: no claimed message has this number.
  bool receive_claimed(std::uint64_t claim, const Receive& receive);
  bool discard_claimed(std::uint64_t claim);
  ReceiveQueue::Sizes sizes() const;
  LinkBook link_counters() const;  // only links that had messages to carry are in it

  // --- under the lock
  ReceiveQueue& receives() noexcept FAB_LIFETIME_BOUND { return receives_; }
  LinkBook& links() noexcept FAB_LIFETIME_BOUND { return links_; }
  // Ends all receives; no more are taken.
  void close();

 private:
  void check_source(const Receive& receive) const;
  void check_local(const Receive& receive) const;
  void check_open() const FAB_REQUIRES(driver_);

  const Rules rules_;
  Driver& driver_;
  ReceiveQueue receives_ FAB_GUARDED_BY(driver_);
  LinkBook links_ FAB_GUARDED_BY(driver_);
  bool closed_ FAB_GUARDED_BY(driver_) = false;
};

}  // namespace fab

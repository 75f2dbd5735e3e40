#pragma once

#include <cstdint>
#include <optional>

#include "fabric/context/driver.h"
#include "fabric/memory/post_rules.h"
#include "fabric/messages/link_counters.h"
#include "fabric/messages/receive_queue.h"

namespace fab {

// The messages that come to one context, and the receives that wait for them; ReceiveQueue says what each
// call does. From any thread: each takes a turn of the driver. Throw Error(closed) after close(), and
// Error(not_supported_here) for receives from anybody without shared receives.
class Inbox final {
 public:
  struct Rules {
    const PostRules* memory;       // outlives the inbox
    bool exempt = false;           // from what the domain's mr_mode asks of programs
    bool directed_receive = true;  // receives may name their source
    bool shared_receives = true;   // false: they must (LNX-48)
  };
  Inbox(Rules rules, Driver& driver) : rules_(rules), driver_(driver), receives_(rules.directed_receive) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  void receive(const Receive& receive);
  bool try_receive(const Receive& receive);  // false: somebody holds the lock, nothing was done
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
  ReceiveQueue::Sizes sizes() const;
  LinkBook link_counters() const;  // of the links that had messages to carry

  // --- under the lock
  ReceiveQueue& receives() noexcept { return receives_; }
  LinkBook& links() noexcept { return links_; }
  // All receives end, and no more are taken.
  void close();

 private:
  void check_source(const Receive& receive) const;
  void check_local(const Receive& receive) const;
  void check_open() const;

  const Rules rules_;
  Driver& driver_;
  // Under the driver's lock:
  ReceiveQueue receives_;
  LinkBook links_;
  bool closed_ = false;
};

}  // namespace fab

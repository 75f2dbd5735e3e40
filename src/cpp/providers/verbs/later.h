#pragma once

#include <functional>
#include <memory>

#include "base/fd.h"
#include "base/network/ticker.h"
#include "base/queues/linked_list.h"
#include "providers/verbs/stream.h"

namespace fab::verbs {

// Who has to be looked at later, though no device will tell of it: streams that call again, and links that
// wait for memory which is being registered, here or at the peer. Used under the context's lock.
class Later final {
 public:
  // `turn_links` gives all links their turn.
  Later(Poller& poller, std::function<void()> turn_links);

  void redial(VerbsStream& stream) noexcept;  // once its redial_due()
  void links() noexcept;                      // in some milliseconds
  // What to call for links() at once. It may be called by any thread, and outlive this object.
  std::function<void()> links_by_thread() const;

 private:
  void tick() noexcept;
  void on_thread() noexcept;

  const std::function<void()> turn_links_;
  LinkedList<VerbsStream, StreamRedials> redials_;
  bool links_ = false;
  Ticker ticker_;
  const std::shared_ptr<OwnFd> thread_;
  ReadyCall on_thread_;
};

}  // namespace fab::verbs

#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/lifetime.h"
#include "base/network/ticker.h"
#include "base/queues/linked_list.h"
#include "fabric/admission/guests.h"
#include "fabric/completion/security_log.h"
#include "fabric/provider.h"
#include "fabric/session/frames/handshake.h"
#include "providers/verbs/connection/call_queue.h"
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/connection/destroyed_later.h"
#include "providers/verbs/connection/device_completion_queue.h"
#include "providers/verbs/connection/queue_pair_end.h"
#include "providers/verbs/connection/shared_receives.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/device/device_events.h"
#include "providers/verbs/device/regions.h"
#include "providers/verbs/device/staging_memory.h"
#include "providers/verbs/exchange/door.h"
#include "providers/verbs/exchange/exchange.h"
#include "providers/verbs/exchange/port.h"
#include "providers/verbs/later.h"
#include "providers/verbs/path.h"
#include "providers/verbs/route.h"

namespace fab::verbs {

// An endpoint has a listening rdma_cm id, or a door for exchanges, one completion queue, the links to peers
// that it calls, and the streams of peers that have called it.
class VerbsEndpoint final : public Endpoint, private Lingerer {
 public:
  // What the endpoints of a domain share. It must outlive them.
  struct Shared {
    const DomainServices& services;
    const Device& device;
    const SocketAddress address;  // one of the device's or, by exchange, where to listen
    const PortPlace* port;        // by which the port is reached without IP; null: it is not
    bool by_exchange;             // peers call by exchange
    // How this side calls.
    Ways ways() const noexcept {
      return {.address = by_exchange ? nullptr : &address, .exchange = port != nullptr};
    }
    ibv_pd& stream_domain;
    ibv_pd& protection_domain;  // of memory that devices of peers may reach
    DeviceRegions& regions;
    bool atomics;                 // devices may do atomics
    std::uint32_t receive_slots;  // that all streams of an endpoint share; 0: each stream has its own
    const TransportOptions& transport;
  };
  VerbsEndpoint(const Shared& shared, const EndpointServices& services, std::string link);
  ~VerbsEndpoint() override;

  std::vector<Part> parts() const override { return {identity_.part}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name& peer, std::uint16_t target, std::size_t key) const override;
  std::unique_ptr<Path> connect(PeerId id, const Name& peer, std::uint16_t target, std::size_t key) override;
  bool progress() noexcept override;
  bool arm() noexcept override;
  void forget(std::uint32_t region) noexcept override;
  void end_removed_keys() noexcept override;

  // --- for links, streams and connections of the endpoint
  const Shared& shared() const noexcept FAB_LIFETIME_BOUND { return shared_; }
  const EndpointServices& services() const noexcept FAB_LIFETIME_BOUND { return services_; }
  const Identity& identity() const noexcept FAB_LIFETIME_BOUND { return identity_; }
  const std::string& link() const noexcept { return identity_.part.link; }
  const SocketAddress& address() const noexcept FAB_LIFETIME_BOUND { return address_; }
  Staging& staging() noexcept FAB_LIFETIME_BOUND { return staging_; }
  Later& later() noexcept FAB_LIFETIME_BOUND { return later_; }
  const Connection::Services& connections() const noexcept FAB_LIFETIME_BOUND { return connections_; }
  // Null if each stream has receives of its own.
  SharedReceives* shared_receives() const noexcept { return shared_receives_.get(); }
  std::chrono::nanoseconds attended() const noexcept { return ticker_.attended(); }
  Liveness::Deadlines deadlines() const noexcept {
    return {shared_.services.options.peer_deadline, services_.shared_deadline};
  }
  void turn_later(VerbsStream& stream) noexcept;
  void turn_later(VerbsLink& link) noexcept;  // its pump()
  // The peer of `by` has called anew, and proven that it is the same, so its earlier streams end.
  void supersede(const VerbsStream& by) noexcept;
  // From now on calls tick() from time to time, until nothing needs it any more.
  void watch() noexcept;
  void retire(VerbsLink& link) noexcept;
  // To the security log, with where the peer says that it is.
  // Tells that the peer has lost this stream, or is losing it.
  void note(SecurityEvent event, const VerbsStream& stream, const char* what) const noexcept;
  // Destroys an object when no code of it runs any more.
  void destroy_later(std::shared_ptr<DestroyedLater> dead) noexcept { destroyed_later_.add(std::move(dead)); }

 private:
  // The called side of a link.
  struct Served;

  bool lingers() noexcept override;
  void listen();
  void open_door();
  // Reads what has happened to connections: all of it, or as much as the slice allows.
  void on_cm(bool all) noexcept;
  void on_event(const rdma_cm_event& event, std::string_view said) noexcept;
  void on_call(OwnId id, const rdma_conn_param& asked, std::string_view said) noexcept;
  void calls_wait() noexcept;  // if some do, take_calls() follows
  void take_calls() noexcept;
  void answer_for_stream(WaitingCall call) noexcept;
  void answer_for_memory(WaitingCall call) noexcept;
  void turn_away() noexcept;
  void on_completions() noexcept;
  void turn_links() noexcept;
  void on_device_events() noexcept;
  void fail_all(const char* why) noexcept;
  bool poll_and_turn() noexcept;
  bool take_turns() noexcept;
  // Calls `visit` with each stream that a peer has called. This and other streams may end meanwhile.
  template <class Visit>
  void visit_served(Visit visit) noexcept;
  void tick() noexcept;
  Bounds bounds() const noexcept;
  void welcome(Served& served) noexcept;
  void release(Served& served) noexcept;

  const EndpointServices services_;
  const Shared shared_;
  SocketAddress address_;
  Identity identity_;
  Ticker ticker_;
  Later later_;

  OwnEventChannel events_;
  DeviceCompletionQueue completions_;
  DestroyedLaterList destroyed_later_;
  std::unique_ptr<SharedReceives> shared_receives_;
  EndpointEvents device_events_;
  QueuePairEnds queue_pair_ends_;
  LinkedList<Connection, ToConnect> to_connect_;
  const OwnFd calls_;  // is ready while calls_told_
  bool calls_told_ = false;
  const char* broken_ = nullptr;                               // why this endpoint reaches nobody any more
  const std::unique_ptr<const Exchange::Services> exchanges_;  // null: the port is not reached without IP
  const Connection::Services connections_;
  Staging staging_;
  OwnId listener_;              // of rdma_cm
  std::unique_ptr<Door> door_;  // or this
  std::unique_ptr<ReadyCall> on_cm_, on_calls_, on_completions_;

  using Links = std::map<LinkKey, std::shared_ptr<VerbsLink>>;
  Links links_;
  Links::iterator next_tick_ = links_.end();  // the link whose tick is next in this round
  Guests callers_, guests_;                   // those of served_ whose handshake is under way, and the others
  std::vector<std::shared_ptr<Served>> served_;
  CallQueue memory_calls_, stream_calls_;  // that nobody has answered yet, by their purpose
  LinkedList<VerbsStream, StreamTurns> turns_;
  LinkedList<VerbsLink, LinkPumps> pumps_;
};

}  // namespace fab::verbs

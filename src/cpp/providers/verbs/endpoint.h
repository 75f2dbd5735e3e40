#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/network/ticker.h"
#include "base/queues/linked_list.h"
#include "fabric/provider.h"
#include "fabric/session/frames/handshake.h"
#include "providers/verbs/connection/connection.h"
#include "providers/verbs/connection/destroyed_later.h"
#include "providers/verbs/connection/device_completion_queue.h"
#include "providers/verbs/connection/shared_receives.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/device/regions.h"
#include "providers/verbs/device/staging_memory.h"
#include "providers/verbs/path.h"

namespace fab::verbs {

// A listening rdma_cm id, one completion queue, the links that were begun here and the streams that serve
// others.
class VerbsEndpoint final : public Endpoint {
 public:
  // What the endpoints of a domain have in common; outlives them.
  struct Shared {
    const DomainServices& services;
    const Device& device;
    const SocketAddress address;  // one of the device's
    ibv_pd& stream_domain;
    ibv_pd& protection_domain;  // of memory that devices of peers may reach
    DeviceRegions& regions;
    bool atomics;                 // by devices
    std::uint32_t receive_slots;  // that all streams of an endpoint share; 0: each has its own
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

  // --- for its links, streams and connections
  const Shared& shared() const noexcept { return shared_; }
  const EndpointServices& services() const noexcept { return services_; }
  const Identity& identity() const noexcept { return identity_; }
  const std::string& link() const noexcept { return identity_.part.link; }
  const SocketAddress& address() const noexcept { return address_; }
  StagingMemory& staging() noexcept { return staging_; }
  const Connection::Services& connections() const noexcept { return connections_; }
  SharedReceives* shared_receives() const noexcept { return shared_receives_.get(); }  // null: none
  std::chrono::nanoseconds attended() const noexcept { return ticker_.attended(); }
  Liveness::Deadlines deadlines() const noexcept {
    return {shared_.services.options.peer_deadline, services_.shared_deadline};
  }
  std::chrono::nanoseconds handshake_until() const noexcept {  // of attended()
    return attended() + Liveness::handshake_time(deadlines());
  }
  void turn_later(VerbsStream& stream) noexcept;
  void pump_later(VerbsLink& link) noexcept;
  // Whoever called is the one that `by` comes from, and has begun anew.
  void supersede(const VerbsStream& by) noexcept;
  void watch() noexcept;  // calls tick() from time to time
  void retire(VerbsLink& link) noexcept;
  // Destroys it when nothing of it runs any more.
  void destroy_later(std::shared_ptr<DestroyedLater> dead) noexcept { destroyed_later_.add(std::move(dead)); }

 private:
  // The called side of a link.
  struct Served;

  void listen();
  void on_cm() noexcept;
  void on_call(OwnId id, const rdma_conn_param& asked, std::string_view said) noexcept;
  void on_completions() noexcept;
  bool poll_and_turn() noexcept;
  bool take_turns() noexcept;
  // Calls it with each stream that serves, which may end on the way, as may others.
  template <class Visit>
  void visit_served(Visit visit) noexcept;
  void tick() noexcept;
  void release(Served& served) noexcept;

  const EndpointServices services_;
  const Shared shared_;
  SocketAddress address_;
  Identity identity_;
  Ticker ticker_;

  OwnEventChannel events_;
  DeviceCompletionQueue completions_;
  DestroyedLaterList destroyed_later_;
  const Connection::Services connections_;
  StagingMemory staging_;
  OwnId listener_;
  std::unique_ptr<SharedReceives> shared_receives_;
  std::unique_ptr<ReadyCall> on_cm_, on_completions_;

  using Links = std::map<std::pair<EndpointId, std::size_t>, std::shared_ptr<VerbsLink>>;
  Links links_;                               // by peer and key
  Links::iterator next_tick_ = links_.end();  // of the present round of ticks
  std::vector<std::shared_ptr<Served>> served_;
  LinkedList<VerbsStream, StreamTurns> turns_;
  LinkedList<VerbsLink, LinkPumps> pumps_;
};

}  // namespace fab::verbs

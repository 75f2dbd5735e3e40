#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/memory/mapping.h"
#include "base/network/ticker.h"
#include "base/queues/linked_list.h"
#include "fabric/provider.h"
#include "fabric/session/frames/handshake.h"
#include "providers/verbs/device/device.h"
#include "providers/verbs/device/regions.h"
#include "providers/verbs/path.h"
#include "providers/verbs/shared_receives.h"

namespace fab::verbs {

// A listening rdma_cm id, one completion queue, the links that were begun here and the streams that serve
// others.
class VerbsEndpoint final : public Endpoint {
 public:
  // What the endpoints of a domain have in common; outlives them.
  struct Shared {
    const Device& device;
    const SocketAddress address;  // one of the device's
    ibv_pd& stream_domain;
    ibv_pd& protection_domain;  // of memory that devices of peers may reach
    DeviceRegions& regions;
    bool atomics;                 // by devices
    std::uint32_t receive_slots;  // that all streams of an endpoint share; 0: each has its own
  };
  VerbsEndpoint(const DomainServices& domain, const EndpointServices& services, const Shared& shared,
                std::string link);
  ~VerbsEndpoint() override;

  std::vector<Part> parts() const override { return {identity_.part}; }
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name& peer, std::uint16_t target, std::size_t key) const override;
  std::unique_ptr<Path> connect(PeerId id, const Name& peer, std::uint16_t target, std::size_t key) override;
  bool progress() noexcept override;
  bool arm() noexcept override;
  void forget(std::uint32_t region) noexcept override;

  // --- for its links, streams and connections
  const DomainServices& domain() const noexcept { return domain_; }
  const EndpointServices& services() const noexcept { return services_; }
  const Identity& identity() const noexcept { return identity_; }
  const std::string& link() const noexcept { return identity_.part.link; }
  const SocketAddress& address() const noexcept { return address_; }
  ibv_pd& stream_domain() const noexcept { return shared_.stream_domain; }
  SharedReceives* shared_receives() const noexcept { return shared_receives_.get(); }  // null: none
  ibv_pd& protection_domain() const noexcept { return shared_.protection_domain; }
  DeviceRegions& regions() const noexcept { return shared_.regions; }
  ibv_cq& completion_queue() const noexcept { return *queue_; }
  rdma_event_channel* events() const noexcept { return events_.get(); }
  bool atomics() const noexcept { return shared_.atomics; }
  bool iwarp() const noexcept { return shared_.device.iwarp(); }
  std::uint64_t max_message() const noexcept { return max_message_; }
  std::uint8_t reads_served() const noexcept;  // at once, of one connection
  std::uint8_t reads_begun() const noexcept;
  std::chrono::nanoseconds attended() const noexcept { return ticker_.attended(); }
  Liveness::Deadlines deadlines() const noexcept {
    return {domain_.options.peer_deadline, services_.shared_deadline};
  }
  std::chrono::nanoseconds handshake_until() const noexcept {  // of attended()
    return attended() + Liveness::handshake_time(deadlines());
  }
  // The first address of the peer that this device may reach; none as well while no descriptor or memory is
  // left to look by.
  std::optional<SocketAddress> route_to(const EndpointAddress& peer) const noexcept;

  // Completions of work requests with this number go to `owner`.
  std::uint32_t add_owner(Connection::Owner& owner);
  void remove_owner(std::uint32_t number) noexcept {
    owners_.erase(number);
    recent_ = {};
  }
  // Room for completions. False: the device has no more.
  bool take_room(std::uint32_t entries) noexcept;
  void give_room(std::uint32_t entries) noexcept { room_taken_ -= entries; }

  // Registered memory for small transfers, in slots of kStageBytes.
  static constexpr std::size_t kStageBytes = 4096;
  bool stage_free() const noexcept { return !free_stages_.empty(); }
  std::int32_t take_stage() noexcept;
  void give_stage(std::int32_t slot) noexcept { free_stages_.push_back(slot); }  // there was room for it
  std::byte* stage(std::int32_t slot) noexcept {
    return staging_.data() + static_cast<std::size_t>(slot) * kStageBytes;
  }
  std::uint32_t stage_key() const noexcept { return staging_key_->lkey; }

  void turn_later(VerbsStream& stream) noexcept;
  void pump_later(VerbsLink& link) noexcept;
  // Whoever called is the one that `by` comes from, and has begun anew.
  void supersede(const VerbsStream& by) noexcept;
  void watch() noexcept;  // calls tick() from time to time
  void retire(VerbsLink& link) noexcept;
  // Destroys it when nothing of it runs any more.
  void destroy_later(std::shared_ptr<DestroyedLater> dead) noexcept {
    if (!dead) return;
    dead->next = std::move(to_destroy_);
    to_destroy_ = std::move(dead);
  }

 private:
  // The called side of a link.
  struct Served;

  void listen();
  void on_cm() noexcept;
  void on_call(OwnId id, const rdma_conn_param& asked, std::string_view said) noexcept;
  void on_completions() noexcept;
  Connection::Owner* owner(std::uint32_t number) noexcept;
  int poll() noexcept;  // how many completions
  bool poll_and_turn() noexcept;
  bool take_turns() noexcept;
  static void destroy(std::shared_ptr<DestroyedLater> dead) noexcept;
  // Calls it with each stream that serves, which may end on the way, as may others.
  template <class Visit>
  void visit_served(Visit visit) noexcept;
  void tick() noexcept;
  void release(Served& served) noexcept;

  const DomainServices domain_;
  const EndpointServices services_;
  const Shared shared_;
  const std::uint64_t max_message_;
  SocketAddress address_;
  Identity identity_;
  Ticker ticker_;

  OwnEventChannel events_;
  OwnCompletionChannel notices_;
  OwnCq queue_;
  std::uint32_t room_ = 0, room_taken_ = 0;
  bool armed_ = false;
  unsigned unacknowledged_ = 0;  // completion events
  Mapping staging_;
  OwnMr staging_key_;
  std::vector<std::int32_t> free_stages_;
  OwnId listener_;
  std::unique_ptr<SharedReceives> shared_receives_;
  std::unique_ptr<ReadyCall> on_cm_, on_completions_;

  std::unordered_map<std::uint32_t, Connection::Owner*> owners_;
  std::pair<std::uint32_t, Connection::Owner*> recent_{};  // the owner that was looked up last
  std::uint32_t next_number_ = 1;
  using Links = std::map<std::pair<EndpointId, std::size_t>, std::shared_ptr<VerbsLink>>;
  Links links_;                               // by peer and key
  Links::iterator next_tick_ = links_.end();  // of the present round of ticks
  std::vector<std::shared_ptr<Served>> served_;
  LinkedList<VerbsStream, StreamTurns> turns_;
  LinkedList<VerbsLink, LinkPumps> pumps_;
  std::shared_ptr<DestroyedLater> to_destroy_;
};

}  // namespace fab::verbs

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/queues/linked_list.h"
#include "fabric/address_vector/address_vector.h"
#include "fabric/completion/completion_queue.h"
#include "fabric/messages/receive_queue.h"
#include "fabric/segment/segment.h"
#include "providers/lnx/flows/flow_table.h"
#include "providers/lnx/rails/rails.h"
#include "simulation/nodes/port.h"

namespace fab::sim {

// What all nodes of a simulation have in common.
struct Settings {
  unsigned nodes = 0, rails = 0;
  // A process that starts anew has the name of the one before, as one that listens on a fixed port.
  bool same_names = false;
  bool plain = false;  // one rail without lnx::Rails: a peer is reached over the link's own path
  double peer_deadline = 0, rail_deadline = 0;
};

// A process: all that a context has, driven as Driver and LinkedEndpoint drive it, on the virtual clock.
class Node {
 public:
  Node(Story& story, Network& network, const Settings& settings, unsigned number, unsigned incarnation);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const unsigned number, incarnation;
  const Settings& settings;
  Story& story;
  Network& network;

  // --- what the context has
  Segment segment;
  RegionTable regions{segment.region_area()};
  CompletionQueue completions{4096, CompletionQueue::WhenFull::refuse};
  AddressVector peers;
  ReceiveQueue receives;
  EventOutlet events;
  Slice slice;
  lnx::FlowTable flows;
  std::function<void()> wake_domain = [] {};

  // --- time
  // At that time, or as soon as the node gets a turn after it.
  void wake(Time when);
  // In the next turn.
  void call(std::function<void()> what);
  void starve(Time until);  // gets no turns until then
  bool starves() const noexcept { return starved_until_ > story.now; }
  Time attended() const noexcept;  // time in which it got turns
  std::chrono::nanoseconds span_attended() const noexcept { return attended().time_since_epoch(); }

  // --- peers
  Name name() const;
  // The address of a node as this one knows it now.
  void learn(const Node& peer, bool keeps_old);
  void insert_anew(unsigned peer);  // the same address, under another handle
  // The way to a peer; null: it is not known, or cannot be reached. `incarnation` says which one it leads to.
  Path* path_to(unsigned peer, unsigned& incarnation);

  std::uint32_t expose(std::uint64_t key, std::vector<iovec> buffers, std::uint32_t rights,
                       bool persistent = false);
  void close_region(std::uint32_t region);
  // The user's part of a turn.
  std::function<void()> user = [] {};
  // As the destructor of an endpoint: says goodbye. Otherwise the process just ends.
  void close();
  void die();
  bool gone() const noexcept { return ports_.empty(); }
  // Rails and streams that somebody still holds.
  std::size_t held() const noexcept { return rails_.size() + ended_.size(); }
  std::vector<std::unique_ptr<Port>>& ports() noexcept { return ports_; }

 private:
  struct Known {
    PeerId handle = kNoPeer;
    unsigned incarnation = 0;
    std::unique_ptr<Path> path{};
    std::uint32_t generation = 0;
  };

  void turn();
  bool progress();
  void serve_rails();
  void tick(lnx::Rails& rails);
  void has_work(lnx::Rails& rails) noexcept;
  void no_later_than(Time when) noexcept;
  void on_time();
  void on_look();
  void sweep();
  std::unique_ptr<Path> connect(const Known& known);
  std::unique_ptr<Path> connect_rails(const lnx::RailsParameters::Destination& to);
  std::shared_ptr<lnx::Rails> new_rails(const lnx::RailsParameters::Destination& to, lnx::FlowId flow);
  void end(bool farewell);
  void note_states();

  std::vector<std::unique_ptr<Port>> ports_;
  std::map<unsigned, Known> book_;
  std::vector<std::unique_ptr<Path>> replaced_;
  std::map<std::string, std::shared_ptr<lnx::Rails>> rails_;  // as LinkedEndpoint's
  std::vector<std::shared_ptr<lnx::Rails>> ended_;
  LinkedList<lnx::Rails, lnx::RailsWork> work_;
  std::vector<std::function<void()>> inbox_;
  bool serving_ = false, time_is_up_ = false, in_turn_ = false;
  std::size_t turns_ = 0;
  Time turn_at_ = Time::max(), timer_at_ = Time::max(), look_at_ = Time::max(), expire_at_ = Time::max(),
       port_look_at_ = Time::max();
  std::uint64_t turn_number_ = 0;
  Time starved_until_{}, starved_since_{};
  Span absent_{};
  std::shared_ptr<Node*> alive_ = std::make_shared<Node*>(this);  // null when this is gone
};

}  // namespace fab::sim

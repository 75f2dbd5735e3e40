#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/network/ticker.h"
#include "fabric/provider.h"
#include "providers/lnx/flows/flow_table.h"
#include "providers/lnx/linked_options.h"
#include "providers/lnx/rails/rails.h"

namespace fab::lnx {

// An endpoint over the endpoints of all links. It has no queues of its own and translates nothing: it hands
// out the links' own paths, or rails over several of them.
class LinkedEndpoint final : public Endpoint, private PathPolicy {
 public:
  struct Link {
    Domain* domain;
    std::string tag;  // of its parts: "tcp.0"
    bool network;     // goes through a network device, which may fail while the peer lives
  };
  // `options` outlives the endpoint.
  LinkedEndpoint(const std::vector<Link>& links, const EndpointServices& services,
                 const LinkedOptions& options);
  ~LinkedEndpoint() override;

  std::vector<std::string> socket_names() const override;
  std::vector<Part> parts() const override;
  Reach reaches(const Name& peer, std::uint16_t target, std::size_t auth_index) const override;
  std::unique_ptr<Path> connect(PeerId id, const Name& peer, std::uint16_t target,
                                std::size_t auth_index) override;
  PathPolicy* policy() noexcept override { return options_.rail_policy ? this : nullptr; }
  bool progress() noexcept override;
  bool arm() noexcept override;
  void forget(std::uint32_t region) noexcept override;
  void end_removed_keys() noexcept override;

 private:
  class Timer;
  struct Opened {
    std::unique_ptr<Endpoint> endpoint;
    std::string tag;
    bool network;
    PartCheck check;
    // Whether the peer's name has a part for this link, in a version that it reads.
    bool named_in(const Name& peer, std::uint16_t target) const;
  };
  Question question(PeerId id, const Name& peer, std::uint16_t target, std::size_t auth_index) const override;
  void answer(const Name& peer, std::uint16_t target, std::size_t auth_index,
              const std::vector<double>& shares) override;
  static std::string place_of(const Name& peer, std::uint16_t target, std::size_t auth_index);
  // The links that become rails to the peer; none where only one leads there.
  std::vector<RailLink> rails_to(const Name& peer, std::uint16_t target, std::size_t auth_index) const;
  struct Way;
  Way way_to(const RailsParameters::Destination& to);
  // Takes those out of `links` that the user does not want.
  std::unique_ptr<Path> connect_rails(const RailsParameters::Destination& to, std::vector<RailLink>& links);
  void weigh(std::vector<RailLink>& links, const std::string& place);
  std::shared_ptr<Rails> new_rails(const RailsParameters::Destination& to, FlowId flow,
                                   const std::vector<RailLink>& links);
  void has_work(Rails& rails) noexcept;
  bool serve_rails() noexcept;
  void look_soon() noexcept;
  void tick(Rails& rails) noexcept;
  void on_look() noexcept;
  void expire() noexcept;

  const EndpointServices services_;
  const LinkedOptions& options_;
  FlowTable flows_;
  std::vector<Opened> links_;
  // The rails to a peer, and the shares for its next connect(); the key is place_of() that peer.
  std::map<std::string, std::shared_ptr<Rails>> rails_;
  std::map<std::string, std::vector<double>> answers_;
  std::vector<std::shared_ptr<Rails>> ended_;  // kept until the links hold nothing of them
  LinkedList<Rails, RailsWork> work_;          // rails that have something to do
  bool time_is_up_ = false;
  bool serving_ = false;  // serve_rails() runs now or next, and looks at work_
  std::size_t sweep_at_ = 64;
  std::size_t turns_ = 0;
  std::unique_ptr<Timer> timer_;
  Ticker looks_;   // for rails that are watched
  Ticker expiry_;  // for flows without rails
};

}  // namespace fab::lnx

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/provider.h"
#include "providers/shm/shm_attach.h"
#include "providers/shm/shm_channel.h"
#include "providers/shm/shm_neighbour.h"
#include "providers/shm/shm_regions.h"

namespace fab::shm {

class ShmDomain;
class ShmPath;

// One context of a domain: its doorbell, the neighbours that it knows, and the channels that others opened to
// it.
class ShmEndpoint final : public Endpoint, private ReadyHandler {
 public:
  ShmEndpoint(const EndpointServices& services, const DomainServices& domain, std::string link,
              CopyMode mode);
  ~ShmEndpoint() override;

  std::vector<Part> parts() const override;
  Reach reaches(const Name& peer) const override;
  std::unique_ptr<Path> connect(PeerId id, const Name& peer) override;
  bool progress() noexcept override;
  bool arm() noexcept override;
  void forget(std::uint32_t index) noexcept override;

  // For its paths.
  void add(ShmPath& path) { paths_.push_back(&path); }
  void remove(ShmPath& path) noexcept { std::erase(paths_, &path); }
  const std::string& link() const noexcept { return link_; }
  const Address& address() const noexcept { return self_; }
  std::uint16_t context() const noexcept { return services_.context; }
  CopyMode copy_mode() const noexcept { return mode_; }
  AttachBatch& attach_batch() noexcept { return attach_batch_; }
  Session::Services session_services(PathCounts& counts) noexcept;
  void continue_later() noexcept;  // progress() shall be called again
  void expect_answers();           // watch for peers that do not answer
  void tell_lost(PeerId peer, Errc why) noexcept;

 private:
  // A channel that a neighbour opened to this context.
  struct Served {
    std::uint32_t slot, epoch;
    Part part;  // of its name
    PeerId source = kNoPeer;
    std::uint32_t generation = 0;
    std::unique_ptr<Channel> channel;
  };
  ContextCell& cell() const noexcept { return domain_.segment.header().contexts[self_.cell]; }
  const Part* part_of(const Name& peer) const noexcept;
  std::shared_ptr<Neighbour> neighbour(const Address& address) const;
  std::pair<std::shared_ptr<Neighbour>, std::uint16_t> look_up(const Name& peer) const;
  void look_for_channels() noexcept;
  bool stands(const Served& served) const noexcept;
  bool serve(Served& served) noexcept;
  void drop_lost() noexcept;
  void check_answers() noexcept;
  void on_ready(std::uint32_t events) noexcept override;

  const EndpointServices services_;
  const DomainServices domain_;
  const std::string link_;
  const CopyMode mode_;
  Address self_;
  OwnFd doorbell_, doorbell_end_, timer_;
  Waker waker_;
  bool timer_runs_ = false;
  bool more_ = false;  // left over by the last progress()
  mutable bool someone_left_ = false;
  mutable std::vector<std::shared_ptr<Neighbour>> neighbours_;
  std::vector<ShmPath*> paths_;
  std::vector<Served> served_;
  PathCounts served_counts_;
  AttachBatch attach_batch_;
};

}  // namespace fab::shm

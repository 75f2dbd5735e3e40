#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/lifetime.h"
#include "base/network/ticker.h"
#include "fabric/provider.h"
#include "providers/shm/attach.h"
#include "providers/shm/channel.h"
#include "providers/shm/peer_domain.h"
#include "providers/shm/regions.h"

namespace fab::shm {

class ShmDomain;
class ShmPath;

// One context of a domain: its doorbell, the peers that it knows, and the channels that others opened to
// it.
class ShmEndpoint final : public Endpoint, private Lingerer, private NoticeHolder, private ReadyHandler {
 public:
  ShmEndpoint(const EndpointServices& services, DomainServices domain, std::string link, CopyMode mode);
  ~ShmEndpoint() override;

  std::vector<Part> parts() const override;
  std::vector<std::string> socket_names() const override { return {}; }
  Reach reaches(const Name& peer, std::uint16_t target, std::size_t auth_index) const override;
  std::unique_ptr<Path> connect(PeerId id, const Name& peer, std::uint16_t target,
                                std::size_t auth_index) override;
  bool progress() noexcept override;
  bool arm() noexcept override;
  void forget(std::uint32_t index) noexcept override;
  void end_removed_keys() noexcept override;

  // For its paths.
  void add(ShmPath& path) { paths_.push_back(&path); }
  void remove(ShmPath& path) noexcept { std::erase(paths_, &path); }
  const std::string& link() const noexcept FAB_LIFETIME_BOUND { return link_; }
  const Address& address() const noexcept FAB_LIFETIME_BOUND { return self_; }
  std::uint16_t context() const noexcept { return services_.context; }
  const AuthKey& key(std::size_t index) const noexcept { return services_.keys[index]; }
  CopyMode copy_mode() const noexcept { return mode_; }
  AttachBatch& attach_batch() noexcept FAB_LIFETIME_BOUND { return attach_batch_; }
  // Null where memory of other processes may not be reached by cross-memory attach.
  AttachBatch* reader() noexcept { return mode_.attach ? &attach_batch_ : nullptr; }
  Slice& slice() noexcept { return services_.slice; }
  // The services of a session with the endpoint that `part` names, under the authorization key of this index.
  Session::Services session_services(PathCounts& counts, Part part, std::size_t auth_index);
  void continue_later() noexcept;  // progress() shall be called again
  void expect_answers() noexcept;  // watch for peers that do not answer
  void path_ended(PeerId peer, Errc why) noexcept;
  // The peer does not take the channels of this process. Remembered as long as its process lives, so that the
  // next path goes over another link or says why there is none. `layout`: PeerDomain::leave_channel().
  void leave(const std::shared_ptr<PeerDomain>& peer, std::uint32_t layout) noexcept;

 private:
  // A channel that a peer opened to this context.
  struct Served {
    std::uint32_t slot, epoch;
    std::unique_ptr<Channel> channel;
  };
  ContextSlot& context_slot() const noexcept { return domain_.segment.board().contexts[self_.context_slot]; }
  std::atomic<std::uint64_t>& doorbell() const noexcept {
    return domain_.segment.header().doorbells[self_.context_slot];
  }
  std::shared_ptr<PeerDomain> peer_domain(const Address& address) const;
  struct Found {
    std::shared_ptr<PeerDomain> peer;
    std::uint16_t context_slot;
    std::uint32_t auth;  // Requester::auth there
  };
  Found look_up(const Name& peer, std::uint16_t target, std::size_t auth_index) const;
  void look_for_channels() noexcept;
  void accept_channels() noexcept;
  void drop_withdrawn() noexcept;
  bool take_messages() noexcept;
  void poll(Channel& channel) noexcept;
  void move_served() noexcept;
  void move_paths() noexcept;
  template <class Gone>
  void drop_served(Gone gone) noexcept;
  void take_rest(Channel& channel) noexcept;
  bool stands(const Served& served) const noexcept;
  void drop_lost() noexcept;
  void check_answers() noexcept;
  bool lingers() noexcept override;
  bool note() noexcept override;
  bool take_noted() noexcept override;
  void tell_lost(PeerId peer, Errc why) noexcept;
  void drop_broken() noexcept;
  void on_ready(std::uint32_t events) noexcept override;

  const EndpointServices services_;
  const DomainServices domain_;
  const std::string link_;
  const CopyMode mode_;
  Address self_;
  OwnFd doorbell_, doorbell_end_;
  Waker waker_;
  Ticker ticker_;
  bool more_ = false;  // the last progress() left something to do
  // Where the next turn begins in each list. This changes, because the first one may spend the whole slice.
  std::size_t next_served_ = 0, next_path_ = 0, next_taken_ = 0;
  unsigned turns_ = 0;
  mutable bool someone_left_ = false;
  // Paths and channels keep these peers. The one that was looked at last is kept here, because whoever asks
  // whether a peer can be reached often opens a path to it next.
  mutable std::vector<std::weak_ptr<PeerDomain>> peers_;
  mutable std::shared_ptr<PeerDomain> looked_at_;
  std::vector<std::shared_ptr<PeerDomain>> left_;  // that do not take channels
  std::vector<ShmPath*> paths_;
  PathCounts served_counts_;
  std::vector<Served> served_;
  unsigned next_polled_ = 0;
  // Channels of `served_` that are looked at in every turn, because their peers need not tell of messages.
  std::array<Channel*, 4> polled_{};
  AttachBatch attach_batch_;
};

}  // namespace fab::shm

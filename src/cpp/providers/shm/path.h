#pragma once

#include <chrono>
#include <memory>

#include "base/queues/ring_queue.h"
#include "fabric/provider.h"
#include "providers/shm/attach.h"
#include "providers/shm/channel.h"
#include "providers/shm/peer_domain.h"
#include "providers/shm/regions.h"

namespace fab::shm {

class ShmEndpoint;

// Frees a slot of the peer's segment that this process has claimed.
struct FreeSlot {
  void operator()(AccessSlot* slot) const noexcept {
    slot->active.store(0);
    slot->owner.store(0);
  }
};
using ClaimedSlot = std::unique_ptr<AccessSlot, FreeSlot>;

// The way to one context of a peer. What this process can do itself is done in post(): puts and gets,
// and atomics on mapped memory. The rest goes through the channel. Transfers settle in the order in which
// they were posted: while the channel owes answers, small ones go through it as well, and larger ones wait
// until it is idle.
class ShmPath final : public Path {
 public:
  // How the path enters the peer: through this access slot, to this context of it, with an authorization key
  // that has an index here and a number there (Requester::auth). `part` is this link's part of the peer's
  // name.
  struct Entry {
    ClaimedSlot slot;
    Part part;
    std::uint16_t context_slot;
    std::size_t auth_index;
    std::uint32_t auth;
  };
  ShmPath(ShmEndpoint& endpoint, PeerId id, std::shared_ptr<PeerDomain> peer, Entry entry);
  ~ShmPath() override;

  std::size_t post(std::span<const Transfer> batch) noexcept override;
  Errc state() const noexcept override { return state_; }
  bool idle() const noexcept override {
    return counts_.posted == counts_.settled && channel_idle() && !(channel_ && channel_->unread());
  }
  PathCounts counts() const noexcept override { return counts_; }
  std::uint64_t oldest() const noexcept override;
  PathReport report() const override;

  // For the endpoint.
  bool progress() noexcept;
  // Whether progress() can go on at once; otherwise whatever lets it go on wakes the context.
  bool busy() const noexcept { return (!waiting_.empty() && !blocked_) || (channel_ && channel_->pending()); }
  Channel* channel() noexcept { return channel_.get(); }
  bool lingers() noexcept;  // as Lingerer::lingers()
  // Gives up if the peer's process or context is gone, or if at `now` it has not answered for `patience`.
  // True while an answer is owed.
  bool check(std::chrono::nanoseconds now, std::chrono::nanoseconds patience) noexcept;
  void end_if_key_removed() noexcept;

 private:
  struct Waiting {
    Transfer transfer;
    std::uint64_t number = 0;  // as oldest()
    std::uint64_t moved = 0;   // bytes
    std::uint64_t state = 0;   // of the region, when the first bytes were moved
  };
  enum class Step { done, again, blocked };

  Errc judge(const Transfer& transfer, const KnownRegion& region, std::uint64_t& offset) const noexcept;
  std::size_t post_messages(std::span<const Transfer> batch) noexcept;
  std::size_t run(std::span<const Transfer> batch) noexcept;
  std::size_t run_mapped(std::span<const Transfer> batch, const KnownRegion& region) noexcept;
  std::size_t run_attach(std::span<const Transfer> batch, const KnownRegion& region) noexcept;
  Errc move_slice(const Transfer& transfer, const KnownRegion& region, std::uint64_t offset,
                  std::uint64_t from, std::uint64_t length) noexcept;
  Errc update(const Transfer& transfer, const KnownRegion& region, std::byte* remote) noexcept;
  Errc attach_slice(const Transfer& transfer, const KnownRegion& region, std::uint64_t offset,
                    std::uint64_t from, std::uint64_t length) noexcept;
  Step step(Waiting& waiting, Errc& verdict) noexcept;
  bool advance() noexcept;
  bool by_channel(const Transfer& transfer) noexcept;
  bool channel_idle() const noexcept {
    return !channel_ || channel_->session().requests().outstanding() == 0;
  }
  Channel* open_channel() noexcept;
  std::uint32_t refused_layout() const noexcept;

  bool wait(const Transfer& transfer) noexcept;
  void settle(const Transfer& transfer, Errc outcome) noexcept;
  void count(const Transfer& transfer, const KnownRegion& region) noexcept {
    if (is_counted(*region.entry, requester_.rights)) [[unlikely]]
      raise_counters_of(transfer, region);
  }
  void raise_counters_of(const Transfer& transfer, const KnownRegion& region) noexcept;
  void lose(Errc why) noexcept;

  ShmEndpoint& endpoint_;
  const PeerId id_;
  std::shared_ptr<PeerDomain> peer_;
  const ClaimedSlot claimed_;
  const Part part_;
  const std::uint16_t context_slot_;
  const std::size_t auth_index_;
  ProvenSecret secret_;  // with which the target's tag was found
  const Requester requester_;
  AccessSlot& slot_;
  KnownRegions known_;
  Errc state_ = Errc::ok;
  PathCounts counts_;
  RingQueue<Waiting> waiting_;
  bool modified_ = false;  // the last atomic that update() applied has changed something
  ArrayCounts arrays_;     // of atomics that update() applied
  bool blocked_ = false;   // the first of `waiting_` waits for the channel
  AttachProof proof_;
  std::unique_ptr<Channel> channel_;
};

}  // namespace fab::shm

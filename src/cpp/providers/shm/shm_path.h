#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/ring_queue.h"
#include "fabric/provider.h"
#include "providers/shm/shm_attach.h"
#include "providers/shm/shm_channel.h"
#include "providers/shm/shm_neighbour.h"

namespace fab::shm {

class ShmEndpoint;

// How the bytes of a region go.
enum class Way : std::uint8_t { mapped, attach, ring };

// The way to one context of a neighbour. What this process can do itself is done in post(): puts and gets, and atomics on mapped
// memory. The rest goes through the channel. Transfers settle in the order in which they were posted: while the channel owes answers,
// small ones go through it as well, and larger ones wait until it is idle.
class ShmPath final : public Path {
 public:
  ShmPath(ShmEndpoint& endpoint, std::shared_ptr<Neighbour> peer, std::uint16_t cell, AccessSlot& slot);
  ~ShmPath() override;

  std::uint64_t resolve(const RemoteRegion& region) override { return region.key; }
  std::size_t post(std::span<const Transfer> batch) noexcept override;
  Errc state() const noexcept override { return state_; }
  PathCounts counts() const noexcept override { return counts_; }
  PathReport report() const override;

  // For the endpoint.
  bool progress() noexcept;
  // Whether progress() can go on at once; otherwise whatever lets it go on wakes the context.
  bool busy() const noexcept { return (!waiting_.empty() && !blocked_) || (channel_ && channel_->pending()); }
  Channel* channel() noexcept { return channel_.get(); }
  // Gives up if the process or the context behind it is gone, or, at `now`, has not answered for `patience`. True while an
  // answer is owed.
  bool check(std::chrono::steady_clock::time_point now, std::chrono::nanoseconds patience) noexcept;

 private:
  // What is known of one region of the peer. Good only while the entry's state is `state`.
  struct Known {
    std::uint64_t key = kNoKey, state = 0;
    RegionEntry* entry = nullptr;
    std::uint32_t index = 0;
    Way way = Way::ring;
    std::byte* memory = nullptr;  // mapped: its first byte here
    std::uint64_t length = 0;     // mapped: bytes of it
    std::shared_ptr<const MappedFile> file;
  };
  struct Waiting {
    Transfer transfer;
    std::uint64_t moved = 0;
  };
  enum class Step { done, again, blocked };
  class Access;

  // Announces an access to the region with `key`; null if there is none.
  Known* enter(std::uint64_t key, Access& access) noexcept;
  Known* look_up(std::uint64_t key, Access& access) noexcept;
  Known& place(std::uint64_t key) noexcept;
  Way way_to(const RegionEntry& entry, Known& known) noexcept;
  void drop_stale() noexcept;

  Errc judge(const Transfer& transfer, const Known& region, std::uint64_t& offset) const noexcept;
  std::size_t run(std::span<const Transfer> batch) noexcept;
  std::size_t run_mapped(std::span<const Transfer> batch, const Known& region) noexcept;
  std::size_t run_attach(std::span<const Transfer> batch, const Known& region) noexcept;
  Errc move_slice(const Transfer& transfer, const Known& region, std::uint64_t offset, std::uint64_t from,
                  std::uint64_t length) noexcept;
  Errc attach_slice(const Transfer& transfer, const Known& region, std::uint64_t offset, std::uint64_t from,
                    std::uint64_t length) noexcept;
  void forbid_attach() noexcept;
  Step step(const Transfer& transfer, std::uint64_t& moved, Errc& verdict) noexcept;
  bool advance() noexcept;
  bool by_channel(const Transfer& transfer) noexcept;
  bool channel_idle() const noexcept { return !channel_ || channel_->session().outstanding() == 0; }
  Channel* open_channel() noexcept;

  void settle(const Transfer& transfer, Errc outcome) noexcept;
  void count(const Transfer& transfer, const Known& region) noexcept;
  void lose(Errc why) noexcept;

  ShmEndpoint& endpoint_;
  std::shared_ptr<Neighbour> peer_;
  RegionView regions_;
  const std::uint16_t cell_;
  AccessSlot& slot_;
  bool attach_;  // allowed
  Errc state_ = Errc::ok;
  Way last_way_;
  PathCounts counts_;
  std::vector<Known> known_;  // a power of two; a region has one possible place
  RingQueue<Waiting> waiting_;
  bool blocked_ = false;  // the first of them waits for the channel
  std::unique_ptr<Channel> channel_;
  bool owed_ = false;  // an answer, when last checked
  std::uint64_t heard_ = 0;
  std::chrono::steady_clock::time_point heard_at_;
};

}  // namespace fab::shm

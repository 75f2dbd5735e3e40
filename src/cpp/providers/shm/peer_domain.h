#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/lifetime.h"
#include "base/memory/mapping.h"
#include "base/network/poller.h"
#include "base/process/process.h"
#include "fabric/segment/segment.h"
#include "fabric/types/error.h"
#include "providers/shm/layout.h"

namespace fab::shm {

// A memory file of a peer, mapped here as a whole.
struct MappedFile {
  std::uint64_t device, inode;
  Mapping mapping;
};

// What identifies a file on this machine.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  static FileId of(int fd);  // throws std::system_error
  friend bool operator==(const FileId&, const FileId&) = default;
};

// A domain of another process on this node, or of this one, as one endpoint sees it: its segment, its files,
// its doorbells, and whether its process lives.
class PeerDomain final : public ReadyHandler {
 public:
  // `left` is set when the watched process ends. Throws Error(unreachable) with the reason.
  PeerDomain(const Address& address, Poller& poller, bool& left);
  ~PeerDomain() override;
  PeerDomain(const PeerDomain&) = delete;
  PeerDomain& operator=(const PeerDomain&) = delete;

  const Address& address() const noexcept FAB_LIFETIME_BOUND { return address_; }
  Segment& segment() noexcept { return segment_; }
  // Whether the process ended, became another program or closed its domain. Looks at the process at most
  // every 10 ms.
  bool gone() noexcept {
    if (segment_.header().closed.load(std::memory_order_relaxed) != 0) gone_ = true;
    if (const auto now = coarse_clock(); now >= next_look_) look(now);
    return gone_;
  }
  bool serves(std::uint16_t context_slot) const noexcept;  // whether the context is open
  // Whether the process says in its segment, which only it can write, that it has made the channel with this
  // number there, behind this file.
  bool has_made(const FileId& file, std::uint32_t published, const MadeChannel& channel) const noexcept {
    return file.device == file_.device && segment_.has_made(published, file.inode, channel);
  }
  // From now on, the end of the process wakes the poller.
  void watch();
  // Tells a context of the peer to look at `bits` (see `work` in layout.h), and wakes it if it sleeps.
  void wake(std::uint32_t context_slot, std::uint32_t bits) noexcept;
  // Why the last doorbell could not be rung, if descriptors or memory were lacking; else `otherwise`.
  Errc hindrance_or(Errc otherwise) const noexcept { return shortage_or(hindrance_, otherwise); }
  bool sleeps(std::uint32_t context_slot) noexcept {
    return segment_.board().contexts[context_slot % kMaxContexts].sleeping.load(std::memory_order_relaxed) !=
           0;
  }
  // The memory file behind descriptor `number` of the owner, of which `size` bytes are needed; null if it
  // cannot be mapped safely.
  std::shared_ptr<const MappedFile> map(int number, std::uint64_t size) noexcept;
  void on_ready(std::uint32_t events) noexcept override;

  // Whether the context has looked for channels since the last wake() for them.
  bool looked_for_channels(std::uint32_t context_slot) const noexcept {
    return (segment_.board().contexts[context_slot % kMaxContexts].work.load() & work::kChannels) == 0;
  }
  // The peer has looked for channels, and has not taken one of this process. `layout` is the layout that it
  // found there instead of its own; 0: it has not told why.
  void leave_channel(std::uint32_t layout) noexcept {
    left_channel_ = true;
    left_layout_ = layout;
  }
  bool left_channel() const noexcept { return left_channel_; }
  std::uint32_t left_layout() const noexcept { return left_layout_; }

 private:
  struct Doorbell {
    std::uint64_t seen = 0;  // SegmentHeader::doorbells
    OwnFd fd;
  };
  static std::int64_t coarse_clock() noexcept;  // ns
  void look(std::int64_t now) noexcept;
  bool holds_segment() const noexcept;

  const Address address_;
  Segment segment_;
  const FileId file_ = FileId::of(segment_.fd());  // of the segment
  ProcessWatch watch_;
  Poller& poller_;
  bool& left_;
  bool watched_ = false;
  bool gone_ = false;
  int hindrance_ = 0;  // errno
  bool left_channel_ = false;
  std::uint32_t left_layout_ = 0;
  std::int64_t next_look_ = 0;
  std::array<Doorbell, kMaxContexts> doorbells_;
  std::vector<std::weak_ptr<const MappedFile>> files_;
};

}  // namespace fab::shm

#include "fabric/segment/segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "base/bytes/random.h"
#include "base/bytes/sha256.h"
#include "base/bytes/wire.h"
#include "fabric/types/error.h"
#include "fabric/types/versions.h"

namespace fab {

OtherLayout::OtherLayout(const std::string& whose, std::uint32_t found)
    : Error(Errc::unreachable, whose + " uses layout " + std::to_string(found) +
                                   " of shared memory, and this library layout " +
                                   std::to_string(versions::kSharedLayout) +
                                   "; use the same version of pyfab on both sides, or another link"),
      found_(found) {}

Segment Segment::create(const std::uint8_t (&domain_id)[16]) {
  Segment segment;
  segment.file_ = make_memory_file("pyfab-segment", kSize);
  segment.mapping_ = Mapping::shared(segment.file_.get(), 0, kSize);
  SegmentHeader& header = segment.header();
  const ProcessId self = this_process();
  header.pid = self.pid;
  header.start_time = self.start_time;
  header.mapped_at = reinterpret_cast<std::uint64_t>(segment.mapping_.data());
  std::memcpy(header.domain_id, domain_id, sizeof header.domain_id);
  fill_random(header.auth_salt, sizeof header.auth_salt);
  header.layout = versions::kSharedLayout;
  header.magic = kSegmentMagic;
  return segment;
}

Segment Segment::attach(const ProcessId& owner, int fd, const std::uint8_t (&domain_id)[16]) {
  const std::string who = "process " + std::to_string(owner.pid);
  const auto refuse = [&](const std::string& why) { return Error(Errc::unreachable, who + " " + why); };
  if (process_start_time(owner.pid) != owner.start_time || owner.start_time == 0) throw refuse("is gone");
  const std::string path = "/proc/" + std::to_string(owner.pid) + "/fd/" + std::to_string(fd);
  Segment segment;
  segment.file_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!segment.file_.valid()) {
    const int error = errno;
    if (error == ENOENT) throw refuse("has closed its domain");
    if (is_shortage(error)) throw std::system_error(error, std::generic_category(), "open " + path);
    throw refuse(std::string("does not let this process map its memory (") + std::strerror(error) +
                 "): same user, and not hardened by PR_SET_DUMPABLE?");
  }
  // Read and not mapped, because nothing but this is known of another layout.
  struct {
    std::uint64_t magic;
    std::uint32_t layout;
  } first{};
  if (::pread(segment.file_.get(), &first, sizeof first, 0) != static_cast<ssize_t>(sizeof first) ||
      first.magic != kSegmentMagic)
    throw refuse("has closed its domain");
  if (first.layout != versions::kSharedLayout) throw OtherLayout(who, first.layout);
  struct stat status;
  if (::fstat(segment.file_.get(), &status) != 0 || !std::cmp_equal(status.st_size, kSize))
    throw refuse("has closed its domain");
  segment.mapping_ = Mapping::shared(segment.file_.get(), 0, kSize);
  const SegmentHeader& header = segment.header();
  if (std::memcmp(header.domain_id, domain_id, sizeof header.domain_id) != 0 || header.closed.load() != 0)
    throw refuse("has closed its domain");
  return segment;
}

namespace {

// Takes a slot that is free or whose process is dead. Of any number who try, one succeeds; a claimant that
// dies at any moment leaves a slot that the next one can take.
bool claim(AccessSlot& slot, std::uint64_t claimant) {
  std::uint64_t owner = slot.owner.load();
  if (owner != 0 && !process_ended(SlotOwner::unpack(owner))) return false;
  if (!slot.owner.compare_exchange_strong(owner, claimant | SlotOwner::kClaiming)) return false;
  slot.active.store(0);
  slot.channel_fd.store(-1);
  slot.channel_epoch.fetch_add(1);
  return true;
}

}  // namespace

int Segment::claim_slot(const ProcessId& claimant) const {
  const std::uint64_t owner = SlotOwner::pack(claimant);
  for (std::uint32_t i = 0; i < kMaxSlots; ++i) {
    if (!claim(slots()[i], owner)) continue;
    slots()[i].owner.store(owner);
    auto& used = header().slots_used;
    for (std::uint32_t seen = used.load(); seen <= i && !used.compare_exchange_weak(seen, i + 1);) {
    }
    return static_cast<int>(i);
  }
  return -1;
}

void Segment::free_if_dead(AccessSlot& slot) noexcept try {
  const ProcessId self = this_process();
  if (self.start_time != 0 && slot.owner.load() != 0 && claim(slot, SlotOwner::pack(self)))
    slot.owner.store(0);
} catch (const std::system_error&) {
  return;  // no descriptor is left to look with; the next one who looks frees the slot
}

bool Segment::wait_unused(std::uint32_t index, Deadline deadline) const {
  const std::uint32_t used = std::min(header().slots_used.load(), kMaxSlots);
  for (std::uint32_t i = 0; i < used; ++i) {
    AccessSlot& slot = slots()[i];
    // An access is short, unless its process is stopped in the middle of it: nothing tells of its end but the
    // slot itself.
    constexpr unsigned kEager = 64;
    for (unsigned round = 1; slot.active.load(std::memory_order_seq_cst) == std::uint64_t{index} + 1;
         ++round) {
      if (slot.owner.load() & SlotOwner::kClaiming) break;  // the process that accessed the region is dead
      if (round < kEager) {
        std::this_thread::yield();
      } else if (round % kEager == 0) {
        free_if_dead(slot);
      } else if (deadline.passed()) {
        return false;
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  }
  return true;
}

std::int32_t Segment::user_of(std::uint32_t index) const {
  const std::uint32_t used = std::min(header().slots_used.load(), kMaxSlots);
  for (std::uint32_t i = 0; i < used; ++i)
    if (slots()[i].active.load() == std::uint64_t{index} + 1)
      return SlotOwner::unpack(slots()[i].owner.load()).pid;
  return 0;
}

bool raise_counters(const Segment& target, const RegionEntry& entry, const ContextRights& rights) noexcept {
  if (entry.counters[0].load(std::memory_order_acquire) == 0 ||
      rights.events.load(std::memory_order_relaxed) == 0)
    return false;
  bool waited_for = false;
  for (const auto& bound : entry.counters) {
    const std::uint32_t counter = bound.load(std::memory_order_acquire);
    if (counter == 0 || counter > kMaxCounters) break;
    CounterSlot& slot = target.counters()[counter - 1];
    slot.value.fetch_add(1, std::memory_order_seq_cst);
    waited_for |= slot.waiters.load(std::memory_order_seq_cst) != 0;
  }
  return waited_for;
}

namespace {

// The proof that the context in `context_slot` takes `secret` under `number`. It covers the number, so that
// nobody can give the key another one.
Digest key_tag(const SegmentHeader& header, std::uint32_t context_slot, std::uint32_t number,
               const std::string& secret) {
  if (secret.empty()) return {};
  WireWriter text;
  text.raw({reinterpret_cast<const char*>(header.auth_salt), sizeof header.auth_salt})
      .put(context_slot)
      .put(number);
  return hmac_sha256(secret, text.take());
}

}  // namespace

void set_auth_keys(Segment& segment, std::uint32_t context_slot, std::span<const AuthKey> keys) {
  KeyTags& published = segment.header().keys[context_slot];
  published.count.store(0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    KeyTags::Tag& tag = published.tags[i];
    tag.number = keys[i].number;
    std::memcpy(tag.proof, key_tag(segment.header(), context_slot, tag.number, keys[i].secret).data(),
                sizeof tag.proof);
  }
  published.count.store(static_cast<std::uint32_t>(keys.size()), std::memory_order_release);
}

std::optional<std::uint32_t> authorized(const Segment& segment, std::uint32_t context_slot,
                                        const std::string& secret) {
  context_slot %= kMaxContexts;
  const KeyTags& published = segment.header().keys[context_slot];
  const std::size_t count =
      std::min<std::size_t>(published.count.load(std::memory_order_acquire), kMaxAuthKeys);
  for (const KeyTags::Tag& tag : std::span(published.tags, count)) {
    const std::uint32_t number = tag.number;
    Digest proof;
    std::memcpy(proof.data(), tag.proof, sizeof proof);
    if (same(proof, key_tag(segment.header(), context_slot, number, secret))) return number;
  }
  return std::nullopt;
}

}  // namespace fab

#include "fabric/segment/segment.h"

#include <fcntl.h>
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
#include "base/locks/mutex.h"
#include "base/memory/foreign_file.h"
#include "fabric/types/error.h"
#include "fabric/types/versions.h"

namespace fab {

DomainGone::DomainGone(const ProcessId& owner)
    : Error(Errc::unreachable, "process " + std::to_string(owner.pid) + " has closed its domain") {}

OtherLayout::OtherLayout(const std::string& whose, std::uint32_t found)
    : Error(Errc::unreachable, whose + " uses layout " + std::to_string(found) +
                                   " of shared memory, and this library layout " +
                                   std::to_string(versions::kSharedLayout) +
                                   "; use the same version of pyfab on both sides, or another link"),
      found_(found) {}

Segment Segment::create(const std::uint8_t (&domain_id)[16]) {
  Segment segment;
  PublishedMemory table = make_published_memory("pyfab-segment", kTableBytes);
  segment.file_ = std::move(table.file);
  segment.table_ = std::move(table.mapping);
  segment.board_file_ = make_memory_file("pyfab-board", kBoardBytes);
  segment.board_ = Mapping::shared(segment.board_file_.get(), 0, kBoardBytes);
  SegmentHeader& header = segment.header();
  const ProcessId self = this_process();
  header.pid = self.pid;
  header.start_time = self.start_time;
  header.mapped_at = reinterpret_cast<std::uint64_t>(segment.table_.data());
  header.board_mapped_at = reinterpret_cast<std::uint64_t>(segment.board_.data());
  header.board_fd = segment.board_file_.get();
  std::memcpy(header.domain_id, domain_id, sizeof header.domain_id);
  fill_random(header.auth_salt, sizeof header.auth_salt);
  header.layout = versions::kSharedLayout;
  header.magic = kSegmentMagic;
  return segment;
}

namespace {

Error no_segment(const ProcessId& owner, const std::string& why) {
  return {Errc::unreachable, "process " + std::to_string(owner.pid) + " " + why};
}

void check_user_of(const ProcessId& owner) {
  const auto user = user_of_process(owner.pid);
  if (!user) throw no_segment(owner, "is gone, or hides from this one in /proc");
  if (*user != ::geteuid())
    throw no_segment(owner, "belongs to user " + std::to_string(*user) + ", and this process to user " +
                                std::to_string(::geteuid()) +
                                ": shared memory is for processes of one user; use tcp");
}

ForeignFile open_file_of(const ProcessId& owner, int number, int flags) {
  ForeignFile found = open_foreign(owner.pid, number, ForeignKind::sealed_memory, flags);
  if (!found.fd.valid()) {
    if (found.error == ENOENT) throw DomainGone(owner);
    if (is_shortage(found.error))
      throw std::system_error(found.error, std::generic_category(),
                              "open a file of process " + std::to_string(owner.pid));
    throw no_segment(owner, found.why());
  }
  return found;
}

void check_size(const ForeignFile& file, std::size_t size, const ProcessId& owner) {
  if (!std::cmp_equal(file.status.st_size, size)) throw DomainGone(owner);
}

// The layout is read and not mapped, because nothing but this is known of another one.
void check_layout(int fd, const ProcessId& owner) {
  struct {
    std::uint64_t magic;
    std::uint32_t layout;
  } first{};
  if (::pread(fd, &first, sizeof first, 0) != static_cast<ssize_t>(sizeof first) ||
      first.magic != kSegmentMagic)
    throw DomainGone(owner);
  if (first.layout != versions::kSharedLayout)
    throw OtherLayout("process " + std::to_string(owner.pid), first.layout);
}

}  // namespace

Segment Segment::attach(const ProcessId& owner, int fd, const std::uint8_t (&domain_id)[16]) {
  if (process_start_time(owner.pid) != owner.start_time || owner.start_time == 0)
    throw no_segment(owner, "is gone");
  check_user_of(owner);
  Segment segment;
  ForeignFile table = open_file_of(owner, fd, O_RDONLY);
  check_layout(table.fd.get(), owner);
  check_size(table, kTableBytes, owner);
  segment.file_ = std::move(table.fd);
  if (!is_published(segment.file_.get()))
    throw no_segment(owner, "shows a segment that others than it can write to");
  segment.table_ = Mapping::shared(segment.file_.get(), 0, kTableBytes, false);
  const SegmentHeader& header = segment.header();
  // A process that has opened the segment of another one could show it as its own.
  if (header.pid != owner.pid || header.start_time != owner.start_time)
    throw no_segment(owner, "shows the segment of process " + std::to_string(header.pid));
  if (std::memcmp(header.domain_id, domain_id, sizeof header.domain_id) != 0) throw DomainGone(owner);
  const ForeignFile board = open_file_of(owner, header.board_fd, O_RDWR);
  check_size(board, kBoardBytes, owner);
  segment.board_ = Mapping::shared(board.fd.get(), 0, kBoardBytes);
  // Looked at after the board was opened: the number was the board's until the domain closed.
  if (header.closed.load() != 0) throw DomainGone(owner);
  return segment;
}

std::uint32_t Segment::publish(std::uint64_t inode, const MadeChannel& channel) {
  const LockGuard lock(*channels_mutex_);
  for (std::uint32_t number = 0; number < kMaxChannels; ++number) {
    PublishedChannel& place = channels()[number];
    if (place.inode.load(std::memory_order_relaxed) != 0) continue;
    place.made = channel;
    place.inode.store(inode, std::memory_order_release);
    return number;
  }
  throw Error(Errc::no_memory, "all " + std::to_string(kMaxChannels) + " channels of the domain are in use");
}

void Segment::withdraw(std::uint32_t number) noexcept {
  channels()[number].inode.store(0, std::memory_order_release);
}

bool Segment::has_made(std::uint32_t number, std::uint64_t inode, const MadeChannel& channel) const noexcept {
  if (number >= kMaxChannels) return false;
  const PublishedChannel& place = channels()[number];
  if (place.inode.load(std::memory_order_acquire) != inode) return false;
  const MadeChannel made = place.made;
  std::atomic_thread_fence(std::memory_order_acquire);
  // The place may have got another channel meanwhile.
  return place.inode.load(std::memory_order_relaxed) == inode && made == channel;
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
    auto& used = board().slots_used;
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
  const std::uint32_t used = slots_used();
  for (std::uint32_t i = 0; i < used; ++i) {
    AccessSlot& slot = slots()[i];
    // An access is short, unless its process is stopped in the middle of it: nothing tells of its end but the
    // slot itself.
    constexpr unsigned kEager = 64;
    for (unsigned round = 1; slot.active.load(std::memory_order_seq_cst) == std::uint64_t{index} + 1;
         ++round) {
      // The process that accessed the region is dead, or somebody wrote into a slot that nobody has.
      const std::uint64_t owner = slot.owner.load();
      if (owner == 0 || (owner & SlotOwner::kClaiming) != 0) break;
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
  const std::uint32_t used = slots_used();
  for (std::uint32_t i = 0; i < used; ++i)
    if (slots()[i].active.load() == std::uint64_t{index} + 1)
      return SlotOwner::unpack(slots()[i].owner.load()).pid;
  return 0;
}

bool Segment::is_accessed() const noexcept {
  return std::ranges::any_of(std::span(slots(), slots_used()), [](const AccessSlot& slot) {
    return slot.active.load(std::memory_order_seq_cst) != 0;
  });
}

bool raise_counters(const Segment& target, const RegionEntry& entry, const ContextRights& rights,
                    Effects effects, bool noticed) noexcept {
  bool waited_for = false;
  const auto raise = [&](std::uint32_t counter) {
    if (counter == 0 || counter > kMaxCounters) return false;
    CounterSlot& slot = target.counters()[counter - 1];
    if (noticed) slot.notices.fetch_add(1, std::memory_order_release);
    slot.value.fetch_add(1, std::memory_order_seq_cst);
    waited_for |= slot.waiters.load(std::memory_order_seq_cst) != 0;
    return true;
  };
  const bool stored = effects == Effects::stored || effects == Effects::both;
  if (stored && rights.events.load(std::memory_order_relaxed) != 0)
    for (const auto& bound : entry.counters)
      if (!raise(bound.load(std::memory_order_acquire))) break;
  const std::uint64_t own = rights.counters.load(std::memory_order_seq_cst);
  if (stored) raise(static_cast<std::uint32_t>(own));
  if (effects == Effects::fetched || effects == Effects::both)
    raise(static_cast<std::uint32_t>(own >> ContextRights::kReadCounter));
  return waited_for;
}

namespace {

// The proof that the context in `context_slot` takes `secret` under `number`. It covers the number, so that
// nobody can give the key another one.
Digest key_tag(const SegmentHeader& header, std::uint32_t context_slot, std::uint32_t number,
               const std::string& secret) noexcept {
  if (secret.empty()) return {};
  char text[sizeof header.auth_salt + 2 * sizeof(std::uint32_t)];
  std::memcpy(text, header.auth_salt, sizeof header.auth_salt);
  char* at = text + sizeof header.auth_salt;
  for (const std::uint32_t part : {to_little(context_slot), to_little(number)}) {
    std::memcpy(at, &part, sizeof part);
    at += sizeof part;
  }
  return hmac_sha256(secret, {text, sizeof text});
}

using TagProof = std::array<std::uint32_t, 8>;  // as in KeyTags::Tag
constexpr TagProof kWithdrawn{~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};

TagProof proof_of(const Digest& tag) noexcept {
  TagProof proof;
  static_assert(sizeof proof == sizeof tag);
  std::memcpy(proof.data(), tag.data(), sizeof proof);
  return proof;
}

TagProof read_proof(const KeyTags::Tag& tag) noexcept {
  TagProof proof;
  for (std::size_t i = 0; i < proof.size(); ++i) proof[i] = tag.proof[i].load(std::memory_order_relaxed);
  return proof;
}

void write_proof(KeyTags::Tag& tag, const TagProof& proof) noexcept {
  for (std::size_t i = 0; i < proof.size(); ++i) tag.proof[i].store(proof[i], std::memory_order_relaxed);
}

}  // namespace

void set_auth_keys(Segment& segment, std::uint32_t context_slot, std::span<const AuthKey> keys) noexcept {
  struct Wanted {
    std::uint32_t number;
    TagProof proof;
    bool published = false;
  };
  std::array<Wanted, kMaxAuthKeys> room;
  std::size_t count = 0;
  for (const AuthKey& key : keys)
    for (std::size_t i = 0; i < key.secrets() && count < room.size(); ++i)
      room[count++] = {key.number,
                       proof_of(key_tag(segment.header(), context_slot, key.number, key.secret_at(i)))};
  const std::span wanted(room.data(), count);
  KeyTags& published = segment.header().keys[context_slot];
  const std::uint32_t tags = published.count.load();
  for (KeyTags::Tag& tag : std::span(published.tags, tags)) {
    const auto kept = std::ranges::find_if(wanted, [&](const Wanted& one) {
      return one.number == tag.number.load() && one.proof == read_proof(tag);
    });
    if (kept != wanted.end())
      kept->published = true;
    else
      write_proof(tag, kWithdrawn);
  }
  std::uint32_t at = 0;
  for (const Wanted& one : wanted) {
    if (one.published) continue;
    while (at < tags && read_proof(published.tags[at]) != kWithdrawn) ++at;
    published.tags[at].number.store(one.number);
    write_proof(published.tags[at], one.proof);
    ++at;
    if (at > published.count.load()) published.count.store(at, std::memory_order_release);
  }
}

std::optional<std::uint32_t> authorized(const Segment& segment, std::uint32_t context_slot,
                                        const std::string& secret) {
  context_slot %= kMaxContexts;
  const KeyTags& published = segment.header().keys[context_slot];
  const std::size_t count =
      std::min<std::size_t>(published.count.load(std::memory_order_acquire), kMaxAuthKeys);
  for (const KeyTags::Tag& tag : std::span(published.tags, count)) {
    const std::uint32_t number = tag.number.load(std::memory_order_relaxed);
    const TagProof found = read_proof(tag);
    Digest proof;
    std::memcpy(proof.data(), found.data(), sizeof proof);
    if (same(proof, key_tag(segment.header(), context_slot, number, secret))) return number;
  }
  return std::nullopt;
}

}  // namespace fab

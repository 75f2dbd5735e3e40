#include "fabric/memory/post_rules.h"

#include <algorithm>
#include <string>

#include "base/bytes/random.h"
#include "base/locks/mutex.h"

namespace fab {

PostRules::PostRules(std::uint32_t mr_mode) noexcept
    : checks_local_((mr_mode & mr_mode::kLocal) != 0),
      only_mapped_((mr_mode & mr_mode::kRaw) != 0),
      active_(checks_local_ || only_mapped_) {}

std::span<const Transfer> PostRules::apply(std::span<const Transfer> batch, std::vector<Transfer>& translated,
                                           bool exempt) const {
  const SharedLock lock(mutex_);
  const bool only_mapped = only_mapped_ && !exempt;
  if (checks_local_ && !exempt)
    for (const Transfer& transfer : batch) check_transfer_memory(transfer);
  if (!only_mapped && keys_.empty()) return batch;
  translated.assign(batch.begin(), batch.end());
  for (Transfer& transfer : translated) {
    if (transfer.op == OpCode::send) continue;
    const auto found = keys_.find(transfer.key);
    if (found != keys_.end())
      transfer.key = found->second;
    else if (only_mapped)
      transfer.key = kNoKey;  // which no region has: the target refuses it
  }
  return translated;
}

void PostRules::check_transfer_memory(const Transfer& transfer) const {
  const std::uint32_t right = transfer.op == OpCode::read   ? access::kRead
                              : transfer.op == OpCode::send ? access::kSend
                                                            : access::kWrite;
  if (is_atomic(transfer.op)) {
    if (transfer.atomic != AtomicOp::atomic_read && transfer.piece_count == 0)
      check_local(transfer.local, transfer.length, right);
    if (transfer.op != OpCode::atomic) check_local(transfer.result, transfer.length, access::kRead);
    if (transfer.op == OpCode::compare_atomic) check_local(transfer.compare, transfer.length, access::kWrite);
  } else if (transfer.piece_count == 0) {
    check_local(transfer.local, transfer.length, right);
  }
  for (std::size_t i = 0; i < transfer.piece_count; ++i)
    check_local(transfer.local_pieces[i].iov_base, transfer.local_pieces[i].iov_len, right);
}

void PostRules::check_receive(std::span<const iovec> memory) const {
  if (!checks_local_) return;
  const SharedLock lock(mutex_);
  for (const iovec& piece : memory) check_local(piece.iov_base, piece.iov_len, access::kRecv);
}

void PostRules::check_local(const void* memory, std::uint64_t length, std::uint32_t right) const {
  if (length == 0) return;
  const auto start = reinterpret_cast<std::uint64_t>(memory);
  bool registered = false;
  for (auto at = local_.upper_bound(start); at != local_.begin();) {
    --at;
    if (start - at->first > longest_) break;
    if (at->second.length < length || start - at->first > at->second.length - length) continue;
    if (at->second.access & right) return;
    registered = true;
  }
  throw Error(Errc::invalid,
              std::to_string(length) + " bytes of local memory are " +
                  (registered ? "registered without the right that the operation needs" : "not registered") +
                  ", and this domain demands it (MRMode.LOCAL): register them with Access." +
                  (right == access::kRead   ? "READ, as the landing place of a get or fetch"
                   : right == access::kSend ? "SEND, as the source of a message"
                   : right == access::kRecv ? "RECV, as the landing place of a message"
                                            : "WRITE, as the source of a put or atomic"));
}

void PostRules::add_local(std::uint64_t id, std::span<const iovec> buffers, std::uint32_t access) {
  const LockGuard lock(mutex_);
  for (const iovec& buffer : buffers) {
    local_.emplace(reinterpret_cast<std::uint64_t>(buffer.iov_base), Local{buffer.iov_len, id, access});
    longest_ = std::max<std::uint64_t>(longest_, buffer.iov_len);
  }
}

void PostRules::remove_local(std::uint64_t id, std::span<const iovec> buffers) noexcept {
  const LockGuard lock(mutex_);
  for (const iovec& buffer : buffers) {
    auto [at, end] = local_.equal_range(reinterpret_cast<std::uint64_t>(buffer.iov_base));
    while (at != end) at = at->second.id == id ? local_.erase(at) : std::next(at);
  }
}

std::uint64_t PostRules::map_key(std::uint64_t key) {
  const LockGuard lock(mutex_);
  std::uint64_t mapped;
  do {
    mapped = random_u64();
  } while (mapped == kNoKey || keys_.contains(mapped));
  keys_.emplace(mapped, key);
  active_.store(true, std::memory_order_relaxed);
  return mapped;
}

void PostRules::unmap_key(std::uint64_t mapped) {
  const LockGuard lock(mutex_);
  if (keys_.erase(mapped) == 0)
    throw Error(Errc::invalid, "key " + std::to_string(mapped) +
                                   " is not one that map_raw() gave, or it was unmapped before");
  active_.store(checks_local_ || only_mapped_ || !keys_.empty(), std::memory_order_relaxed);
}

std::size_t PostRules::mapped_keys() const noexcept {
  const SharedLock lock(mutex_);
  return keys_.size();
}

}  // namespace fab

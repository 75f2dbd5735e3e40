#include "providers/verbs/verbs_regions.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/wire.h"

namespace fab::verbs {
namespace {

constexpr std::uint8_t kVersion = 1;
constexpr std::uint32_t kMostSearched = 4096;  // regions, for local memory that no device knows yet

}  // namespace

std::uint64_t Description::length() const noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < piece_count; ++i) sum += pieces[i].length;
  return sum;
}

void Description::encode(std::byte* out) const noexcept {
  WireWriter writer;
  writer.put(kVersion).put(piece_count).put(static_cast<std::uint8_t>(atomics)).put(std::uint8_t{0});
  writer.put(access).put(base);
  for (std::size_t i = 0; i < piece_count; ++i)
    writer.put(pieces[i].address).put(pieces[i].length).put(pieces[i].rkey);
  const std::string bytes = writer.take();
  std::memset(out, 0, kDescriptionBytes);
  std::memcpy(out, bytes.data(), std::min(bytes.size(), kDescriptionBytes));
}

std::optional<Description> Description::decode(const std::byte* in) noexcept {
  WireReader reader({reinterpret_cast<const char*>(in), kDescriptionBytes});
  Description told;
  if (reader.get<std::uint8_t>() != kVersion) return {};
  told.piece_count = reader.get<std::uint8_t>();
  told.atomics = reader.get<std::uint8_t>() != 0;
  reader.get<std::uint8_t>();
  told.access = reader.get<std::uint32_t>();
  told.base = reader.get<std::uint64_t>();
  if (told.piece_count == 0 || told.piece_count > kMostPieces) return {};
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < told.piece_count; ++i) {
    Piece& piece = told.pieces[i];
    piece.address = reader.get<std::uint64_t>();
    piece.length = reader.get<std::uint64_t>();
    piece.rkey = reader.get<std::uint32_t>();
    if (piece.length == 0 || piece.address + piece.length < piece.address || sum + piece.length < sum)
      return {};
    sum += piece.length;
  }
  return reader.ok() ? std::optional(told) : std::nullopt;
}

bool DeviceRegions::take(std::uint32_t region, Registered& into) {
  const RegionEntry& entry = regions_.entry(region);
  // Accesses that the owner has to see, to allow or to count one by one, come as messages.
  if ((entry.flags & (region_flag::kObserved | region_flag::kSpans)) != 0 ||
      entry.counters[0].load(std::memory_order_acquire) != 0 || entry.length == 0)
    return false;
  iovec pieces[RegionView::kMaxRegionPieces];
  const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
  constexpr std::uint32_t kStores = access::kRemoteWrite | access::kWrite | access::kRecv;
  int rights = (entry.access & kStores) != 0 ? IBV_ACCESS_LOCAL_WRITE : 0;
  if ((entry.access & access::kRemoteRead) != 0) rights |= IBV_ACCESS_REMOTE_READ;
  if ((entry.access & access::kRemoteWrite) != 0) rights |= IBV_ACCESS_REMOTE_WRITE;
  const bool atomics = atomics_ && (entry.access & access::kRemoteWrite) != 0 && !claimed_.contains(region);
  if (atomics) rights |= IBV_ACCESS_REMOTE_ATOMIC;
  for (std::size_t i = 0; i < count; ++i) {
    if (pieces[i].iov_len == 0) continue;
    OwnMr mr(library().reg_mr(&pd_, pieces[i].iov_base, pieces[i].iov_len, rights));
    if (!mr) return false;  // too much, or pages that are not there: messages serve the region
    into.pieces.push_back(
        {reinterpret_cast<std::uint64_t>(pieces[i].iov_base), pieces[i].iov_len, std::move(mr)});
  }
  into.access = entry.access;
  into.told_atomics = atomics;
  return true;
}

void DeviceRegions::index_locally(std::uint32_t region, const Registered& registered) {
  constexpr std::uint32_t kStores = access::kRemoteWrite | access::kWrite | access::kRecv;
  for (const Piece& piece : registered.pieces)
    local_.insert_or_assign(piece.address,
                            Local{piece.length, piece.mr->lkey, region, (registered.access & kStores) != 0});
}

DeviceRegions::Registered* DeviceRegions::find(std::uint32_t region) {
  if (const auto known = registered_.find(region); known != registered_.end()) return &known->second;
  Registered made;
  if (!take(region, made)) return nullptr;
  Registered& kept = registered_.emplace(region, std::move(made)).first->second;
  index_locally(region, kept);
  return &kept;
}

void DeviceRegions::drop(std::uint32_t region) noexcept {
  const auto known = registered_.find(region);
  if (known == registered_.end()) return;
  generation_.fetch_add(1, std::memory_order_release);
  std::erase_if(local_, [region](const auto& entry) { return entry.second.region == region; });
  registered_.erase(known);
}

bool DeviceRegions::describe(std::uint32_t region, std::byte* out) noexcept try {
  const std::lock_guard lock(mutex_);
  const RegionEntry& entry = regions_.entry(region);
  if (entry.counters[0].load(std::memory_order_acquire) != 0) {  // bound since
    drop(region);
    return false;
  }
  Registered* const registered = find(region);
  if (!registered || registered->pieces.empty() || registered->pieces.size() > Description::kMostPieces)
    return false;
  Description told{.base = entry.base,
                   .access = registered->access,
                   .atomics = registered->told_atomics,
                   .piece_count = static_cast<std::uint8_t>(registered->pieces.size())};
  for (std::size_t i = 0; i < registered->pieces.size(); ++i) {
    const Piece& piece = registered->pieces[i];
    told.pieces[i] = {piece.address, piece.length, piece.mr->rkey};
  }
  told.encode(out);
  return true;
} catch (const std::exception&) {
  return false;
}

void DeviceRegions::claim_atomics(std::uint32_t region) noexcept {
  if (!atomics_) return;
  const std::lock_guard lock(mutex_);
  if (claimed_.contains(region)) return;
  try {
    claimed_.emplace(region, true);
  } catch (const std::exception&) {
  }
  // Whoever was told that its device may update the region meets an unknown key, and asks again.
  if (const auto known = registered_.find(region); known != registered_.end() && known->second.told_atomics)
    drop(region);
}

void DeviceRegions::forget(std::uint32_t region) noexcept {
  const std::lock_guard lock(mutex_);
  claimed_.erase(region);
  drop(region);
}

std::optional<std::uint32_t> DeviceRegions::search(std::uint64_t at, std::uint64_t length,
                                                   bool stores) const noexcept {
  auto next = local_.upper_bound(at);
  if (next == local_.begin()) return {};
  const auto& [start, local] = *std::prev(next);
  if (at - start > local.length || length > local.length - (at - start) || (stores && !local.writable))
    return {};
  return local.key;
}

std::optional<std::uint32_t> DeviceRegions::local_key(const void* at, std::uint64_t length,
                                                      bool stores) noexcept try {
  const auto address = reinterpret_cast<std::uint64_t>(at);
  const std::lock_guard lock(mutex_);
  if (const auto key = search(address, length, stores)) return key;
  iovec pieces[RegionView::kMaxRegionPieces];
  for (std::uint32_t region = 0; region < kMostSearched; ++region) {
    const RegionEntry& entry = regions_.entry(region);
    const auto status = status_of(entry.state.load(std::memory_order_seq_cst));
    if (entry.key.load(std::memory_order_relaxed) == 0 && status == RegionStatus::vacant && entry.length == 0)
      break;  // never used, nor those behind it
    if (status != RegionStatus::enabled || registered_.contains(region)) continue;
    const std::size_t count = regions_.pieces(entry, 0, entry.length, pieces);
    for (std::size_t i = 0; i < count; ++i) {
      const auto start = reinterpret_cast<std::uint64_t>(pieces[i].iov_base);
      if (address < start || address - start > pieces[i].iov_len ||
          length > pieces[i].iov_len - (address - start))
        continue;
      if (find(region)) return search(address, length, stores);
    }
  }
  return {};
} catch (const std::exception&) {
  return {};
}

}  // namespace fab::verbs

#include "fabric/address_vector/address_vector.h"

#include <algorithm>

#include "base/bytes/printable.h"
#include "base/bytes/random.h"
#include "base/locks/mutex.h"
#include "fabric/types/error.h"
#include "fabric/types/versions.h"

namespace fab {
namespace {

constexpr std::size_t kPerTurn = 64;  // addresses inserted before other writers get the lock
constexpr int kAttempts = 10'000;     // to read an address while somebody else changes it

std::vector<PartView>& scratch_parts() {
  thread_local std::vector<PartView> parts;
  return parts;
}
std::vector<std::uint32_t>& scratch_hashes() {
  thread_local std::vector<std::uint32_t> hashes;
  return hashes;
}

std::unique_ptr<PeerMemory> described(std::unique_ptr<PeerMemory> memory,
                                      const AddressVectorOptions& options) {
  describe(memory->header(), options);
  return memory;
}

}  // namespace

void describe(PeerHeader& header, const AddressVectorOptions& options) {
  header.seed = random_u64();
  header.version = versions::kPeerFile;
  header.format = static_cast<std::uint32_t>(options.format);
  header.rx_bits = options.rx_bits;
  header.user_ids = options.user_ids;
  header.type = options.type;
  header.ep_per_node = options.ep_per_node;
}

// The writers' lock. A writer that finds that another one died while it held the lock repairs the vector
// first.
class AddressVector::Writing {
 public:
  explicit Writing(AddressVector& vector) : memory_(*vector.memory_), lock_(memory_) {
    if (memory_.header().writing.load(std::memory_order_relaxed) != 0) vector.repair();
    memory_.header().writing.store(1, std::memory_order_release);
  }
  ~Writing() { memory_.header().writing.store(0, std::memory_order_release); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  PeerMemory& memory_;
  const PeerMemory::Lock lock_;
};

AddressVector::AddressVector(Options options)
    : AddressVector(options, described(make_private_peer_memory(), options)) {}

AddressVector::AddressVector(Options options, std::unique_ptr<PeerMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      entries_(*memory_),
      user_ids_(*memory_),
      auths_(*memory_),
      records_(*memory_),
      index_(*memory_),
      runs_(*memory_),
      vacancies_(*memory_) {
  if (options_.rx_bits > max_rx_bits(options_.max_group))
    throw Error(Errc::invalid, "rx_ctx_bits=" + std::to_string(options_.rx_bits) + ": beside the index" +
                                   (options_.max_group ? " and the peer group" : "") +
                                   " a handle has room for " +
                                   std::to_string(max_rx_bits(options_.max_group)) + " bits");
}

void AddressVector::refuse(PeerId peer) {
  throw Error(Errc::invalid, "peer " + std::to_string(static_cast<std::int64_t>(peer)) +
                                 " is not in the address vector (never inserted, or removed)");
}

std::optional<std::uint64_t> AddressVector::index_of(PeerId peer) const noexcept {
  if (peer == kNoPeer) return {};
  const PeerTarget target = take_apart(peer, options_.rx_bits);
  return target.group == 0 ? std::optional(target.index) : std::nullopt;
}

std::uint64_t AddressVector::existing(PeerId peer) const {
  const auto index = index_of(peer);
  if (!index || generation(*index) == 0) refuse(peer);
  return *index;
}

bool AddressVector::contains(PeerId peer) const noexcept {
  const auto index = index_of(peer);
  return index && generation(*index) != 0;
}

std::uint32_t AddressVector::generation(PeerId index) const noexcept {
  if (index >= end()) return 0;
  if (const PeerEntry* entry = entries_.find(index)) {
    if (const auto own = entry->generation.load(std::memory_order_acquire)) return own;
    if (entry->form.load(std::memory_order_relaxed) & kFormTouched) return 0;
  }
  return runs_.generation(index);
}

// A reader looks at the generation before and after, because a writer clears it before it frees the record.
std::size_t AddressVector::read(std::uint64_t index, std::span<char> out) const {
  if (index >= end()) return 0;
  if (const PeerEntry* entry = entries_.find(index)) {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const std::uint32_t generation = entry->generation.load(std::memory_order_acquire);
      if (generation == 0) break;
      const PeerRecords::Stored stored{entry->form.load(std::memory_order_relaxed) & kFormMask,
                                       entry->record.load(std::memory_order_relaxed)};
      const std::size_t length = records_.read(stored, out.data(), out.size());
      std::atomic_thread_fence(std::memory_order_acquire);
      if (entry->generation.load(std::memory_order_relaxed) == generation) return length;
    }
    if (entry->form.load(std::memory_order_relaxed) & kFormTouched) return 0;
  }
  PeerRuns::Packed packed;
  const std::size_t length = runs_.address(index, packed);
  if (length <= out.size()) std::copy_n(packed.begin(), length, out.begin());
  return length;
}

bool AddressVector::read(std::uint64_t index, std::string& out) const {
  for (bool complete = false; !complete;) {
    const std::size_t length = read(index, std::span(out));
    complete = length <= out.size();
    out.resize(length);
  }
  return !out.empty();
}

std::string AddressVector::lookup(PeerId peer) const {
  const auto index = index_of(peer);
  std::string address(256, '\0');
  if (!index || !read(*index, address)) refuse(peer);
  return address;
}

std::size_t AddressVector::lookup(PeerId peer, std::span<char> out) const {
  const auto index = index_of(peer);
  const std::size_t length = index ? read(*index, out) : 0;
  if (length == 0) refuse(peer);
  if (length <= out.size()) return length;
  const std::string address = lookup(peer);
  std::copy_n(address.begin(), std::min(address.size(), out.size()), out.begin());
  return address.size();
}

Name AddressVector::name(PeerId peer) const {
  std::string address = lookup(peer);
  if (options_.format == AddressFormat::bundle) return Name::decode(address);
  return {{{std::string(kSocketLink), 0, std::move(address)}}};
}

void AddressVector::hashes_of(std::string_view address, std::vector<std::uint32_t>& hashes) const {
  const std::uint64_t seed = memory_->header().seed;
  hashes.clear();
  if (options_.format != AddressFormat::bundle) {
    hashes.push_back(PeerIndex::hash(seed, kSocketLink, 0, address));
    return;
  }
  auto& parts = scratch_parts();
  Name::decode(address, parts);
  for (const PartView& part : parts)
    hashes.push_back(PeerIndex::hash(seed, part.link, part.context, part.bytes));
}

// Throws Error: unreachable if no part belongs to a link of the domain, invalid if such a part cannot be
// read.
void AddressVector::check_links(const std::vector<PartView>& parts) const {
  if (!check_) return;
  bool common = false;
  std::vector<std::string> others;  // parts of links that are here, which cannot be used
  for (const PartView& part : parts) {
    PartVerdict verdict = check_(part);
    common |= verdict.usable;
    if (!verdict.found.empty() && part.context == 0) others.push_back(std::move(verdict.found));
  }
  if (common) return;
  const auto add = [](std::string& list, std::string_view link) {
    list.append(list.empty() ? "" : ", ").append(printable(link));
  };
  std::string ours, theirs;
  for (const std::string& link : links_) add(ours, link);
  if (!others.empty()) {
    for (const std::string& other : others) add(theirs, other);
    throw Error(Errc::unreachable,
                "no link leads to the peer: its address has " + theirs +
                    "; use the same version of pyfab on both sides, or a link that both know");
  }
  for (const PartView& part : parts)
    if (part.context == 0) add(theirs, part.link);
  throw Error(Errc::unreachable, "no link leads to the peer: this domain has " + ours + ", the peer " +
                                     theirs + "; open one of the two with a link that the other has");
}

// The address as the vector keeps it. Throws Error, as insert() does.
std::string_view AddressVector::checked(std::string_view address, std::string& canonical,
                                        std::vector<PartView>& parts) const {
  if (options_.format == AddressFormat::bundle) {
    Name::decode(address, parts);
    check_links(parts);
    return address;
  }
  const auto socket = unpack(address);
  const bool right = socket && (options_.format == AddressFormat::any_sockaddr ||
                                socket->v6() == (options_.format == AddressFormat::sockaddr_in6));
  if (!right)
    throw Error(
        Errc::invalid,
        "these " + std::to_string(address.size()) + " bytes are no address of this domain, which wants " +
            (options_.format == AddressFormat::sockaddr_in    ? "a packed sockaddr_in"
             : options_.format == AddressFormat::sockaddr_in6 ? "a packed sockaddr_in6"
                                                              : "a packed sockaddr_in or sockaddr_in6") +
            " with a port");
  canonical = pack(*socket);
  parts.assign(1, {kSocketLink, 0, canonical});
  return canonical;
}

void AddressVector::changed() noexcept {
  auto& changes = memory_->header().changes;
  changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void AddressVector::check_writable() const {
  if (!memory_->writable())
    throw Error(Errc::access,
                "the address vector was opened to be read; open it without read_only to change it");
}

PeerId AddressVector::insert(std::string_view address, const Extra& extra) {
  check_writable();
  const Writing turn(*this);
  return insert_now(address, extra);
}

void AddressVector::insert(std::span<const std::string_view> addresses,
                           const std::function<Extra(std::size_t)>& extra, const Done& done) {
  check_writable();
  for (std::size_t at = 0; at < addresses.size();) {
    const Writing turn(*this);
    for (const std::size_t end = std::min(at + kPerTurn, addresses.size()); at < end; ++at) try {
        done(at, insert_now(addresses[at], extra(at)), nullptr);
      } catch (const Error& error) {
        done(at, kNoPeer, &error);
      }
  }
}

PeerId AddressVector::insert_now(std::string_view address, const Extra& extra) {
  std::string canonical;
  auto& parts = scratch_parts();
  address = checked(address, canonical, parts);
  auto& hashes = scratch_hashes();
  hashes.clear();
  PeerHeader& header = memory_->header();
  for (const PartView& part : parts)
    hashes.push_back(PeerIndex::hash(header.seed, part.link, part.context, part.bytes));

  for (const std::uint32_t hash : hashes) index_.prefetch(hash);

  if (options_.reject_duplicates && is_there(address, hashes.front()))
    throw Error(Errc::already,
                "the address is in the address vector already, which was opened with "
                "duplicates=\"reject\"");
  std::uint32_t generation = header.next_generation.load(std::memory_order_relaxed) + 1;
  if (generation == 0) generation = 1;
  header.next_generation.store(generation, std::memory_order_relaxed);

  const auto vacant = find_vacant();
  const std::uint64_t index = vacant.value_or(header.used.load(std::memory_order_relaxed));
  if (index >= kMaxPeers) throw Error(Errc::no_memory, "the address vector is full");
  const bool plain = !extra.auth && !extra.user_id;
  if (options_.symmetric && !vacant && plain && options_.format != AddressFormat::bundle &&
      runs_.append(index, address, generation)) {
    header.used.store(index + 1, std::memory_order_release);
    header.live.fetch_add(1, std::memory_order_relaxed);
    changed();
    return index;
  }
  PeerEntry& entry = entries_.make(index);
  if (extra.user_id) user_ids_.make(index).store(~*extra.user_id, std::memory_order_relaxed);
  const PeerRecords::Stored stored = records_.store(address);
  if (vacant)
    vacancies_.take(index);
  else
    header.used.store(index + 1, std::memory_order_release);
  entry.form.store(stored.form | kFormTouched | (extra.user_id ? kFormUserId : 0), std::memory_order_relaxed);
  entry.record.store(stored.record, std::memory_order_relaxed);
  if (extra.auth) auths_.make(index).store(extra.auth, std::memory_order_relaxed);
  for (const std::uint32_t hash : hashes) index_.insert(hash, static_cast<std::uint32_t>(index));
  entry.generation.store(generation, std::memory_order_release);
  header.live.fetch_add(1, std::memory_order_relaxed);
  changed();
  return index;
}

void AddressVector::check_end() const {
  const std::uint64_t end = memory_->header().used.load(std::memory_order_relaxed);
  const auto is_peer = [&](std::uint64_t index) {
    const PeerEntry* entry = entries_.find(index);
    return entry && entry->generation.load(std::memory_order_relaxed) != 0;
  };
  const bool counts_too_many = end != 0 && !entries_.find(end - 1) && runs_.generation(end - 1) == 0;
  if (counts_too_many || end > kMaxPeers || is_peer(end))
    throw Error(Errc::bad_state,
                "the address vector is damaged: it counts " + std::to_string(end) +
                    " indices, which is not what it holds. Some process wrote into its memory; close the "
                    "vector in all processes and fill it anew");
}

std::optional<std::uint64_t> AddressVector::find_vacant() {
  check_end();
  const auto found = vacancies_.lowest();
  if (!found || (*found < end() && generation(*found) == 0)) return found;
  repair();
  check_end();
  return vacancies_.lowest();
}

void AddressVector::watch(std::weak_ptr<PeerWatcher> watcher) {
  const LockGuard lock(watchers_mutex_);
  std::erase_if(watchers_, [](const auto& known) { return known.expired(); });
  watchers_.push_back(std::move(watcher));
}

void AddressVector::remove(PeerId peer) {
  const std::uint64_t index = remove_now(peer);
  std::vector<std::weak_ptr<PeerWatcher>> watchers;
  {
    const LockGuard lock(watchers_mutex_);
    watchers = watchers_;
  }
  for (const auto& watcher : watchers)
    if (const auto told = watcher.lock()) told->removed(index);
}

std::uint64_t AddressVector::remove_now(PeerId peer) {
  check_writable();
  const Writing turn(*this);
  const std::uint64_t index = existing(peer);
  PeerEntry& entry = entries_.make(index);
  if (entry.generation.load(std::memory_order_relaxed) != 0) {
    std::string address;
    auto& hashes = scratch_hashes();
    hashes.clear();
    if (read(index, address)) hashes_of(address, hashes);
    const std::uint32_t form = entry.form.load(std::memory_order_relaxed);
    entry.generation.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (const std::uint32_t hash : hashes) index_.erase(hash, static_cast<std::uint32_t>(index));
    records_.release({form & kFormMask, entry.record.load(std::memory_order_relaxed)});
  }
  entry.form.store(kFormTouched, std::memory_order_release);
  if (auto* id = user_ids_.find(index)) id->store(0, std::memory_order_relaxed);
  if (auto* auth = auths_.find(index)) auth->store(0, std::memory_order_relaxed);
  vacancies_.add(index);
  memory_->header().live.fetch_sub(1, std::memory_order_relaxed);
  changed();
  return index;
}

// After a writer died, the entries are taken as they are, and all else is derived from them.
void AddressVector::repair() {
  PeerHeader& header = memory_->header();
  vacancies_.forget_all();
  index_.clear();
  std::string address;
  std::vector<std::uint32_t> hashes;  // the thread's scratch is in use: the caller has its own hashes there
  // What was counted may be wrong as well. Indices without an entry belong to runs.
  const std::uint64_t room = std::max(entries_.room(), runs_.end());
  header.used.store(std::min(end(), room), std::memory_order_relaxed);
  const std::uint64_t entries = std::min(end(), entries_.room());
  std::uint64_t live = runs_.held(entries, end());
  for (std::uint64_t index = 0; index < entries; ++index) {
    if (generation(index) == 0) {
      vacancies_.add(index);
      continue;
    }
    ++live;
    const PeerEntry* entry = entries_.find(index);
    if (!entry || entry->generation.load(std::memory_order_relaxed) == 0) continue;
    try {
      if (!read(index, address)) continue;
      hashes_of(address, hashes);
      for (const std::uint32_t hash : hashes) index_.insert(hash, static_cast<std::uint32_t>(index));
    } catch (const Error&) {
      continue;  // the file is damaged: nobody finds this peer by its parts
    }
  }
  header.live.store(live, std::memory_order_relaxed);
}

bool AddressVector::holds(std::uint64_t index, const Part& part) const {
  thread_local std::string address;
  address.resize(std::max<std::size_t>(address.capacity(), 256));
  if (!read(index, address)) return false;
  if (options_.format != AddressFormat::bundle) return part.link == kSocketLink && part.bytes == address;
  try {
    auto& parts = scratch_parts();
    Name::decode(address, parts);
    return std::ranges::any_of(parts, [&](const PartView& view) { return view == part; });
  } catch (const Error&) {
    return false;
  }
}

PeerId AddressVector::reported(PeerId index) const noexcept {
  const PeerEntry* entry = entries_.find(index);
  const bool own = entry && entry->form.load(std::memory_order_relaxed) & kFormUserId;
  if (!options_.user_ids && !own) return index;
  const auto* id = user_ids_.find(index);
  return id ? ~id->load(std::memory_order_relaxed) : kNoPeer;
}

void AddressVector::set_user_id(PeerId peer, PeerId user_id) {
  if (!options_.user_ids)
    throw Error(Errc::invalid, "set_user_id() is for address vectors that were opened with user_id=True");
  check_writable();
  const Writing turn(*this);
  user_ids_.make(existing(peer)).store(~user_id, std::memory_order_relaxed);
  changed();
}

std::uint32_t AddressVector::auth(PeerId peer) const {
  const auto* found = auths_.find(existing(peer));
  return found ? found->load(std::memory_order_relaxed) : 0;
}

PeerId AddressVector::reported_of_key(std::uint32_t auth) const noexcept {
  if (!options_.user_ids) return auth - 1;
  const LockGuard lock(key_ids_mutex_);
  const auto id = key_user_ids_.find(auth);
  return id == key_user_ids_.end() ? kNoPeer : id->second;
}

void AddressVector::set_key_user_id(std::uint32_t auth, std::optional<PeerId> user_id) {
  if (!options_.user_ids)
    throw Error(Errc::invalid, "set_user_id() is for address vectors that were opened with user_id=True");
  check_writable();
  {
    const LockGuard lock(key_ids_mutex_);
    if (user_id)
      key_user_ids_[auth] = *user_id;
    else
      key_user_ids_.erase(auth);
  }
  const Writing turn(*this);
  changed();
}

}  // namespace fab

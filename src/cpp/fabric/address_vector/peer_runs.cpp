#include "fabric/address_vector/peer_runs.h"

#include <netinet/in.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "fabric/address_vector/socket_name.h"

namespace fab {
namespace {

// Difference of two addresses as a number of nodes; nothing if it is negative or huge.
std::optional<std::uint64_t> nodes_between(const SocketAddress& from, const SocketAddress& to) {
  if (from.v6() != to.v6()) return {};
  const std::string low = from.bytes(), high = to.bytes();
  std::uint64_t difference = 0;
  int borrow = 0;
  for (std::size_t i = low.size(); i-- > 0;) {
    int digit = static_cast<unsigned char>(high[i]) - static_cast<unsigned char>(low[i]) - borrow;
    borrow = digit < 0 ? 1 : 0;
    digit &= 0xff;
    const std::size_t place = low.size() - 1 - i;
    if (place >= 6 && digit) return {};
    if (place < 6) difference |= static_cast<std::uint64_t>(digit) << (8 * place);
  }
  return borrow ? std::nullopt : std::optional(difference);
}

}  // namespace

std::size_t PeerRuns::base(const PeerRun& run, Packed& out) noexcept {
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t word = run.address[i].load(std::memory_order_relaxed);
    std::memcpy(out.data() + 8 * i, &word, 8);
  }
  return std::min<std::size_t>(run.length.load(std::memory_order_relaxed), out.size());
}

// Works on the packed bytes, because lookups spend their time here.
std::size_t PeerRuns::at(const PeerRun& run, std::uint64_t nodes, std::uint64_t ports, Packed& out) noexcept {
  const std::size_t length = base(run, out);
  const bool v6 = length == sizeof(sockaddr_in6);
  if (!v6 && length != sizeof(sockaddr_in)) return 0;
  std::uint16_t port;  // both structures have it at the same place
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  std::memcpy(&port, out.data() + offsetof(sockaddr_in, sin_port), sizeof port);
  if (ports > 65535u - ntohs(port)) return 0;
  port = htons(static_cast<std::uint16_t>(ntohs(port) + ports));
  std::memcpy(out.data() + offsetof(sockaddr_in, sin_port), &port, sizeof port);
  char* const host = out.data() + (v6 ? offsetof(sockaddr_in6, sin6_addr) : offsetof(sockaddr_in, sin_addr));
  for (int i = v6 ? 15 : 3; i >= 0 && nodes; --i) {
    nodes += static_cast<unsigned char>(host[i]);
    host[i] = static_cast<char>(nodes & 0xff);
    nodes >>= 8;
  }
  return nodes ? 0 : length;
}

const PeerRun* PeerRuns::run_of(std::uint64_t index) const noexcept {
  for (std::uint32_t i = count(); i-- > 0;) {
    const PeerRun& run = memory_.header().run[i];
    const std::uint64_t first = run.first.load(std::memory_order_relaxed);
    if (index < first) continue;
    return index - first < run.count.load(std::memory_order_acquire) ? &run : nullptr;
  }
  return nullptr;
}

std::uint64_t PeerRuns::end_of(const PeerRun& run) noexcept {
  const std::uint64_t first = std::min(run.first.load(std::memory_order_relaxed), kMaxPeers);
  return first + std::min(run.count.load(std::memory_order_acquire), kMaxPeers - first);
}

std::uint64_t PeerRuns::end() const noexcept {
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < count(); ++i) end = std::max(end, end_of(memory_.header().run[i]));
  return end;
}

std::uint64_t PeerRuns::held(std::uint64_t from, std::uint64_t to) const noexcept {
  std::uint64_t held = 0;
  for (std::uint32_t i = 0; i < count(); ++i) {
    const PeerRun& run = memory_.header().run[i];
    const std::uint64_t first = std::max(run.first.load(std::memory_order_relaxed), from);
    const std::uint64_t last = std::min(end_of(run), to);
    if (first < last) held += last - first;
  }
  return held;
}

std::uint32_t PeerRuns::generation(std::uint64_t index) const noexcept {
  const PeerRun* run = run_of(index);
  return run ? run->generation.load(std::memory_order_relaxed) : 0;
}

std::size_t PeerRuns::address(std::uint64_t index, Packed& out) const noexcept {
  const PeerRun* run = run_of(index);
  if (!run) return 0;
  const std::uint64_t offset = index - run->first.load(std::memory_order_relaxed);
  const std::uint64_t services = run->services.load(std::memory_order_acquire);
  return services ? at(*run, offset / services, offset % services, out) : at(*run, 0, offset, out);
}

std::optional<std::uint64_t> PeerRuns::index_of(const PeerRun& run, std::string_view address) {
  Packed bytes;
  const auto first = unpack({bytes.data(), base(run, bytes)}), wanted = unpack(address);
  if (!first || !wanted || wanted->port() < first->port()) return {};
  const std::uint64_t count = run.count.load(std::memory_order_acquire);
  const std::uint64_t services = run.services.load(std::memory_order_acquire);
  const auto nodes = nodes_between(*first, *wanted);
  const std::uint64_t port = wanted->port() - first->port();
  if (!nodes || *nodes > count || (services ? port >= services : *nodes != 0)) return {};
  const std::uint64_t offset = *nodes * services + port;
  if (offset >= count) return {};
  return run.first.load(std::memory_order_relaxed) + offset;
}

bool PeerRuns::append(std::uint64_t index, std::string_view address, std::uint32_t generation) {
  PeerHeader& header = memory_.header();
  const std::uint32_t runs = count();
  if (address.size() > 32) return false;
  if (runs != 0) {
    PeerRun& run = header.run[runs - 1];
    const std::uint64_t first = run.first.load(std::memory_order_relaxed);
    const std::uint64_t length = run.count.load(std::memory_order_relaxed);
    const std::uint32_t services = run.services.load(std::memory_order_relaxed);
    if (index == first + length) {
      const auto is = [&](std::uint64_t nodes, std::uint64_t ports) {
        Packed next;
        return std::string_view(next.data(), at(run, nodes, ports, next)) == address;
      };
      bool next = services ? is(length / services, length % services) : is(0, length);
      if (!next && services == 0 && length <= 65535 && is(1, 0)) {
        run.services.store(static_cast<std::uint32_t>(length), std::memory_order_release);
        next = true;
      }
      if (next) {
        run.count.store(length + 1, std::memory_order_release);
        return true;
      }
    }
  }
  if (runs == kMaxRuns) return false;
  PeerRun& run = header.run[runs];
  std::array<char, 32> bytes{};
  std::ranges::copy(address, bytes.begin());
  for (std::size_t i = 0; i < 4; ++i) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    run.address[i].store(word, std::memory_order_relaxed);
  }
  run.length.store(static_cast<std::uint32_t>(address.size()), std::memory_order_relaxed);
  run.first.store(index, std::memory_order_relaxed);
  run.generation.store(generation, std::memory_order_relaxed);
  run.services.store(header.ep_per_node, std::memory_order_relaxed);
  run.count.store(1, std::memory_order_relaxed);
  header.runs.store(runs + 1, std::memory_order_release);
  return true;
}

}  // namespace fab

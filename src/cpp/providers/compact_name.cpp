#include "providers/compact_name.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/bytes/sha256.h"
#include "base/bytes/wire.h"
#include "base/memory/foreign_file.h"
#include "base/process/identity.h"
#include "fabric/segment/segment.h"
#include "fabric/session/frames/hello.h"
#include "fabric/types/versions.h"
#include "providers/shm/layout.h"

namespace fab {
namespace {

static_assert(versions::kSharedLayout == 11 && versions::kEndpointPart == 2,
              "the parts have changed: raise versions::kCompactName");

constexpr std::uint8_t kMark = 0x80;  // no other encoding of names begins so
constexpr std::uint8_t kShm = 1, kTcp = 2, kKeyId = 4, kV6 = 8, kRails = 16;
constexpr std::uint8_t kBits = kMark | kShm | kTcp | kKeyId | kV6 | kRails;
constexpr const char* kShmLink = "shm.0";
constexpr const char* kTcpLink = "tcp.0";
constexpr const char* kSecondRail = "tcp.1";
// Beside tcp, of the shm part: the beginnings of its two digests, and numbers as short as the kernel has
// them.
constexpr std::size_t kHostBytes = 4, kPidBytes = 3, kStartBytes = 5, kFdBytes = 2, kDomainBytes = 1;

std::string_view view(const auto& bytes, std::size_t length) {
  return {reinterpret_cast<const char*>(bytes), length};
}

void put_number(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

std::uint64_t take_number(WireReader& in, std::size_t bytes) {
  std::uint64_t value = 0;
  const std::string_view raw = in.raw(bytes);
  for (std::size_t i = 0; i < raw.size(); ++i)
    value |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
  return value;
}

bool fits(std::uint64_t value, std::size_t bytes) { return value >> (8 * bytes) == 0; }

// Name of the process without what tells it from others of other hosts.
bool put_short(std::string& out, const shm::Address& address) {
  if (!fits(static_cast<std::uint64_t>(address.process.pid), kPidBytes) ||
      !fits(address.process.start_time, kStartBytes) ||
      !fits(static_cast<std::uint64_t>(address.segment_fd), kFdBytes) || !fits(address.context_slot, 1))
    return false;
  out += view(address.host, kHostBytes);
  put_number(out, static_cast<std::uint64_t>(address.process.pid), kPidBytes);
  put_number(out, address.process.start_time, kStartBytes);
  put_number(out, static_cast<std::uint64_t>(address.segment_fd), kFdBytes);
  put_number(out, address.context_slot, 1);
  out += view(address.domain_id, kDomainBytes);
  return true;
}

// The header of the segment that the process shows, if it can be read and is the one that is meant.
std::unique_ptr<SegmentHeader> header_of(const shm::Address& address) {
  const ForeignFile file =
      open_foreign(address.process.pid, address.segment_fd, ForeignKind::sealed_memory, O_RDONLY);
  if (!file.fd.valid()) return nullptr;
  constexpr std::size_t kNeeded = offsetof(SegmentHeader, auth_salt);
  auto header = std::make_unique<SegmentHeader>();
  if (::pread(file.fd.get(), static_cast<void*>(header.get()), kNeeded, 0) != static_cast<ssize_t>(kNeeded))
    return nullptr;
  const bool meant = header->magic == kSegmentMagic && header->layout == versions::kSharedLayout &&
                     header->pid == address.process.pid && header->start_time == address.process.start_time &&
                     std::memcmp(header->domain_id, address.domain_id, kDomainBytes) == 0;
  return meant ? std::move(header) : nullptr;
}

shm::Address take_short(WireReader& in) {
  shm::Address address;
  const std::string_view host = in.raw(kHostBytes);
  std::ranges::copy(host, reinterpret_cast<char*>(address.host));
  address.process.pid = static_cast<std::int32_t>(take_number(in, kPidBytes));
  address.process.start_time = take_number(in, kStartBytes);
  address.segment_fd = static_cast<std::int32_t>(take_number(in, kFdBytes));
  address.context_slot = static_cast<std::uint16_t>(take_number(in, 1));
  std::ranges::copy(in.raw(kDomainBytes), reinterpret_cast<char*>(address.domain_id));
  if (!in.ok() || address.process.pid <= 0) throw Error(Errc::invalid, "an address is not valid: no process");
  const Digest here = sha256(host_identity());
  if (std::memcmp(address.host, here.data(), kHostBytes) != 0) return address;
  const auto header = header_of(address);
  if (!header) return address;  // its host is nobody's
  std::copy_n(here.begin(), sizeof address.host, address.host);
  std::memcpy(address.domain_id, header->domain_id, sizeof address.domain_id);
  return address;
}

// Two tcp links leave no room for the network, which an address that is no loopback does not have.
bool fits_rails(const EndpointAddress& first, const EndpointAddress& second) {
  const auto is_short = [&](const EndpointAddress& where) {
    return where.kind == first.kind && where.network == decltype(where.network){} &&
           !where.addresses.front().v6();
  };
  return is_short(first) && is_short(second);
}

void put_tcp(std::string& out, const EndpointAddress& where, bool rail) {
  const SocketAddress& address = where.addresses.front();
  out += view(where.id.data(), where.id.size());
  if (!rail) out += view(where.network.data(), where.network.size());
  put_number(out, address.port(), 2);
  out += address.bytes();
}

EndpointAddress take_tcp(WireReader& in, std::uint8_t flags) {
  EndpointAddress where;
  where.kind = flags & kKeyId ? IdKind::key : IdKind::address;
  std::ranges::copy(in.raw(where.id.size()), reinterpret_cast<char*>(where.id.data()));
  if (!(flags & kRails))
    std::ranges::copy(in.raw(where.network.size()), reinterpret_cast<char*>(where.network.data()));
  const auto port = static_cast<std::uint16_t>(take_number(in, 2));
  const std::string_view raw = in.raw(flags & kV6 ? 16 : 4);
  if (!in.ok() || port == 0) throw Error(Errc::invalid, "an address is not valid: no port");
  where.addresses.push_back(SocketAddress::from_bytes(raw, port));
  return where;
}

}  // namespace

std::optional<std::string> compact(const Name& name) {
  const Part* const memory = name.find(kShmLink, 0);
  const Part* const network = name.find(kTcpLink, 0);
  const Part* const rail = network ? name.find(kSecondRail, 0) : nullptr;
  if (name.parts.size() !=
      std::size_t{memory != nullptr} + std::size_t{network != nullptr} + std::size_t{rail != nullptr})
    return {};
  const auto process = memory ? shm::Address::decode(memory->bytes) : std::nullopt;
  const auto where = network ? EndpointAddress::parse(network->bytes) : std::nullopt;
  const auto other = rail ? EndpointAddress::parse(rail->bytes) : std::nullopt;
  if ((memory && !process) || (network && (!where || where->addresses.size() != 1))) return {};
  if (rail && (!where || !other || other->addresses.size() != 1 || !fits_rails(*where, *other))) return {};
  std::uint8_t flags = kMark;
  if (process) flags |= kShm;
  if (where) flags |= kTcp;
  if (where && where->kind == IdKind::key) flags |= kKeyId;
  if (where && where->addresses.front().v6()) flags |= kV6;
  if (other) flags |= kRails;
  std::string out;
  put_number(out, flags, 1);
  put_number(out, versions::kCompactName, 1);
  if (process && !where) out += memory->bytes;
  if (process && where && !put_short(out, *process)) return {};
  if (where) put_tcp(out, *where, rail != nullptr);
  if (other) put_tcp(out, *other, true);
  const std::size_t length = compact_length(out.front());
  if (out.size() > length) return {};
  out.resize(length);
  return out;
}

bool is_compact(std::string_view bytes) noexcept {
  return !bytes.empty() && (static_cast<std::uint8_t>(bytes.front()) & kMark) != 0;
}

std::size_t compact_length(char first) noexcept {
  return (static_cast<std::uint8_t>(first) & kRails) != 0 ? kCompactRailsBytes : kCompactNameBytes;
}

Name expand(std::string_view bytes) {
  WireReader in(bytes);
  const auto flags = in.get<std::uint8_t>();
  const auto version = in.get<std::uint8_t>();
  const bool known = is_compact(bytes) && (flags & ~kBits) == 0 && (flags & (kShm | kTcp)) != 0 &&
                     (flags & (kTcp | kV6 | kRails)) != kRails && (flags & (kV6 | kRails)) != (kV6 | kRails);
  if (!known || bytes.size() != compact_length(bytes.front()))
    throw Error(Errc::invalid, "an address of " + std::to_string(bytes.size()) + " bytes is not valid");
  if (version != versions::kCompactName)
    throw Error(Errc::invalid, "an address is of version " + std::to_string(version) +
                                   "; this library reads version " + std::to_string(versions::kCompactName));
  Name name;
  if (flags & kShm) {
    const bool alone = (flags & kTcp) == 0;
    name.parts.push_back(
        {kShmLink, 0, alone ? std::string(in.raw(shm::Address::kSize)) : take_short(in).encode()});
  }
  if (flags & kTcp) name.parts.push_back({kTcpLink, 0, take_tcp(in, flags).encode()});
  if (flags & kRails) name.parts.push_back({kSecondRail, 0, take_tcp(in, flags).encode()});
  return name;
}

}  // namespace fab

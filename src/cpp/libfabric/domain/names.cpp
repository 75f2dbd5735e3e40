#include "libfabric/domain/names.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/bytes/wire.h"
#include "fabric/types/error.h"
#include "libfabric/domain/node_name.h"
#include "providers/compact_name.h"

namespace fab::fi {
namespace {

// Magic, version and the length of the body, in front of it, and a checksum behind it: Name::encode().
constexpr std::size_t kHead = 10, kTail = 4;
constexpr std::size_t kStep = 64, kMostBytes = 4096;

std::size_t encoded_length(const void* bytes) {
  char head[kHead];
  std::memcpy(head, bytes, kHead);
  WireReader in({head, kHead});
  in.get<std::uint32_t>();
  in.get<std::uint16_t>();
  const std::size_t length = kHead + in.get<std::uint32_t>() + kTail;
  if (length > kMostBytes) throw Error(Errc::invalid, "an address is not valid: it does not start like one");
  return length;
}

std::size_t padded(std::size_t length) { return (length + kStep - 1) / kStep * kStep; }

}  // namespace

std::string to_wire(const Name& name) {
  if (auto short_name = compact(name)) return *std::move(short_name);
  std::string bytes = name.encode();
  bytes.resize(padded(bytes.size()));
  return bytes;
}

std::string name_of(Context& context, AddressFormat format, const std::optional<SocketAddress>& source) {
  if (format == AddressFormat::bundle) return to_wire(Name{context.parts()});
  std::vector<std::string> names;
  context.locked([&](fab::Endpoint& endpoint) { names = endpoint.socket_names(); });
  std::string best;
  for (const std::string& name : names) {
    const auto address = unpack(name);
    if (!address || address->v6() != (format == AddressFormat::sockaddr_in6)) continue;
    if (source && address->bytes() == source->bytes()) return name;
    if (best.empty()) best = name;
  }
  if (best.empty())
    throw Error(Errc::no_data, "the endpoint listens on no address of the family of its names");
  return best;
}

std::string to_wire(std::string_view address, AddressFormat format) {
  return format == AddressFormat::bundle ? to_wire(Name::decode(address)) : std::string(address);
}

std::string from_wire(std::string_view bytes, AddressFormat format) {
  if (format != AddressFormat::bundle) return std::string(bytes);
  if (is_place(bytes)) return from_wire(find_on_node(port_of_place(bytes)), format);
  if (is_compact(bytes)) return expand(bytes.substr(0, compact_length(bytes.front()))).encode();
  if (bytes.size() < kHead) throw Error(Errc::invalid, "an address is not valid: it is too short");
  return std::string(bytes.substr(0, encoded_length(bytes.data())));
}

std::size_t wire_length(const void* bytes, AddressFormat format) {
  if (format == AddressFormat::sockaddr_in) return sizeof(sockaddr_in);
  if (format == AddressFormat::sockaddr_in6) return sizeof(sockaddr_in6);
  const std::string_view first(static_cast<const char*>(bytes), 1);
  if (is_place(first)) return kCompactNameBytes;
  return is_compact(first) ? compact_length(first.front()) : padded(encoded_length(bytes));
}

}  // namespace fab::fi

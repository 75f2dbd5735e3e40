#include "providers/verbs/domain.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "base/bytes/number.h"
#include "base/network/interfaces.h"
#include "fabric/session/frames/hello.h"
#include "fabric/types/error.h"
#include "providers/verbs/endpoint.h"

namespace fab::verbs {
namespace {

constexpr std::uint32_t kFewestShared = 16;

bool connects_by_exchange(const Device& device, const DomainOptions& options) {
  const std::string given = options.choice("verbs_connect", {"auto", "cm", "exchange"});
  if (given == "cm" && device.addresses.empty())
    throw Error(Errc::not_supported_here, "verbs_connect is \"cm\", but " + device.name +
                                              " has no IP address; leave the setting out, or give one to "
                                              "its network interface");
  return given == "exchange" || device.addresses.empty();
}

// Where exchanges are made if the user does not say it: the address from which this host calls most others.
SocketAddress usual_listening_address() {
  for (const char* const elsewhere : {"192.0.2.1:9", "[2001:db8::1]:9"})  // nobody's, for documentation
    if (const auto source = source_towards(parse_socket_address(elsewhere, 0))) return *source;
  const auto interfaces = list_interfaces();
  for (const bool loopback : {false, true})
    for (const Interface& interface : interfaces)
      if (interface.up && interface.loopback == loopback && !interface.addresses.empty())
        return interface.addresses.front();
  throw Error(Errc::no_data,
              "no network interface has an address at which peers could make exchanges; a port without an "
              "IP address needs one of another interface");
}

SocketAddress listening_address(const DomainOptions& options) try {
  const std::string given = options.setting("verbs_listen", "");
  if (given.empty()) return usual_listening_address();
  const SocketAddress address = parse_socket_address(given, 0);
  if (address.wildcard())
    throw std::invalid_argument("\"" + given + "\" is no address that peers could call; name one of them");
  return address;
} catch (const std::invalid_argument& error) {
  throw Error(Errc::invalid, std::string("verbs_listen: ") + error.what());
}

SocketAddress chosen_address(const Device& device, const DomainOptions& options) {
  const std::string index = options.setting("verbs_gid_index", "");
  return index.empty() ? device.addresses.front() : address_of_gid(device, index);
}

// By which peers reach the port without IP. A port that connects by its IP address may have none, and calls
// no peer by exchange then.
std::optional<PortPlace> place_without_ip(const Device& device, const DomainOptions& options,
                                          bool by_exchange) {
  if (!by_exchange && !reached_without_ip(device)) return {};
  return PortPlace::of(device, options.setting("verbs_gid_index", ""));
}

std::uint32_t shared_receive_slots(const Device& device, const DomainServices& services) {
  const std::string given = services.options.setting("verbs_srq", "0");
  const auto slots = number_in<std::uint32_t>(given);
  const auto most = static_cast<std::uint32_t>(std::max(0, device.limits.max_srq_wr));
  if (slots == 0u) return 0;
  if (device.iwarp())
    throw Error(
        Errc::not_supported_here,
        "verbs_srq is \"" + given + "\", but on " + device.name +
            " (iWARP) a message for which no slot is free ends the connection; leave the setting out");
  if (!slots || *slots < kFewestShared || *slots > most)
    throw Error(Errc::invalid, "verbs_srq is \"" + given + "\"; it must be 0 or a number of slots from " +
                                   std::to_string(kFewestShared) + " to " + std::to_string(most) +
                                   ", which " + device.name + " has");
  return *slots;
}

bool device_atomics(const Device& device, const DomainServices& services) {
  return !services.options.chosen("verbs_atomics", "native", "cpu") && !services.linked && !device.iwarp() &&
         device.limits.atomic_cap != IBV_ATOMIC_NONE;
}

// What on-demand paging can do over the device's reliable connections: bits of IBV_ODP_SUPPORT_*.
std::uint32_t on_demand_paging(const Device& device) noexcept {
  // This does the work of ibv_query_device_ex(), which would need the library at link time.
  const verbs_context* const calls = verbs_get_ctx(device.context);
  constexpr std::size_t kNeeded = sizeof(verbs_context) - offsetof(verbs_context, query_device_ex);
  if (!calls || calls->sz < kNeeded || !calls->query_device_ex) return 0;
  ibv_device_attr_ex limits{};
  if (calls->query_device_ex(device.context, nullptr, &limits, sizeof limits) != 0) return 0;
  if ((limits.odp_caps.general_caps & IBV_ODP_SUPPORT) == 0) return 0;
  return limits.odp_caps.per_transport_caps.rc_odp_caps;
}

int registration_traits(const Device& device, bool atomics, const DomainServices& services) {
  int traits = 0;
  if (services.options.chosen("verbs_odp", "off", "on")) {
    std::uint32_t needed = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
    if (atomics) needed |= IBV_ODP_SUPPORT_ATOMIC;
    if ((on_demand_paging(device) & needed) != needed)
      throw Error(
          Errc::not_supported_here,
          "verbs_odp is \"on\", but device " + device.name +
              " has no on-demand paging for puts, gets and the updates that it does itself; leave the "
              "setting out, or try verbs_atomics=\"cpu\" with it");
    traits |= IBV_ACCESS_ON_DEMAND;
  }
  return traits;
}

// Whether the device shows memory under any address that it is given. soft-iWARP uses the memory's own one,
// whatever it is asked.
bool shows_any_address(const Device& device) noexcept {
  return library().reg_mr_iova2 != nullptr && !device.iwarp();
}

}  // namespace

VerbsDomain::VerbsDomain(Device device, Info info, std::string link, const DomainServices& services)
    : device_(std::move(device)),
      info_(std::move(info)),
      link_(std::move(link)),
      services_(services),
      by_exchange_(connects_by_exchange(device_, services.options)),
      address_(by_exchange_ ? listening_address(services.options)
                            : chosen_address(device_, services.options)),
      port_(place_without_ip(device_, services.options, by_exchange_)),
      atomics_(device_atomics(device_, services)),
      receive_slots_(shared_receive_slots(device_, services)),
      transport_(TransportOptions::of(services.options)),
      streams_(open_protection_domain(device_)),
      protection_domain_(open_protection_domain(device_)),
      regions_(*protection_domain_, services.segment.regions(),
               {.atomics = atomics_,
                .chosen_addresses = shows_any_address(device_),
                .longest = std::max<std::uint64_t>(1, device_.limits.max_mr_size),
                .relaxed = relaxed_ordering(services.options),
                .access = registration_traits(device_, atomics_, services)},
               services.options) {
  info_.src_addr = address_.host();
}

PartCheck VerbsDomain::part_check() const {
  return [link = link_](const PartView& part) -> PartVerdict {
    if (part.link != link) return {};
    return EndpointAddress::judge(part);
  };
}

std::unique_ptr<Endpoint> VerbsDomain::open_endpoint(const EndpointServices& services) {
  return std::make_unique<VerbsEndpoint>(
      VerbsEndpoint::Shared{services_, device_, address_, port_ ? &*port_ : nullptr, by_exchange_, *streams_,
                            *protection_domain_, regions_, atomics_, receive_slots_, transport_},
      services, link_);
}

}  // namespace fab::verbs

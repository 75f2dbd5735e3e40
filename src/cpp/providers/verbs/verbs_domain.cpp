#include "providers/verbs/verbs_domain.h"

#include <cerrno>
#include <cstring>

#include "fabric/error.h"
#include "fabric/hello.h"
#include "providers/verbs/verbs_endpoint.h"

namespace fab::verbs {
namespace {

bool device_atomics(const Device& device, const DomainServices& services) {
  const std::string chosen = services.options.setting("verbs_atomics", "native");
  if (chosen != "native" && chosen != "cpu")
    throw Error(Errc::invalid, "verbs_atomics is \"" + chosen + "\"; it must be native or cpu");
  return chosen == "native" && !services.linked && !device.iwarp() &&
         device.limits.atomic_cap != IBV_ATOMIC_NONE;
}

ibv_pd* open_protection_domain(const Device& device) {
  ibv_pd* const opened = library().alloc_pd(device.context);
  if (!opened)
    throw Error(Errc::no_memory,
                "device " + device.name + " gives no protection domain: " + std::strerror(errno));
  return opened;
}

}  // namespace

VerbsDomain::VerbsDomain(Device device, Info info, std::string link, const DomainServices& services)
    : device_(std::move(device)),
      info_(std::move(info)),
      link_(std::move(link)),
      services_(services),
      atomics_(device_atomics(device_, services)),
      streams_(open_protection_domain(device_)),
      protection_domain_(open_protection_domain(device_)),
      regions_(*protection_domain_, services.segment.regions(), atomics_, services.options) {}

PartCheck VerbsDomain::part_check() const {
  return [link = link_](const PartView& part) {
    if (part.link != link) return false;
    if (Whereabouts::valid(part.bytes)) return true;
    throw Error(Errc::invalid, "an address is not valid: its " + link + " part cannot be read");
  };
}

std::unique_ptr<Endpoint> VerbsDomain::open_endpoint(const EndpointServices& services) {
  return std::make_unique<VerbsEndpoint>(
      services_, services, VerbsEndpoint::Shared{device_, *streams_, *protection_domain_, regions_, atomics_},
      link_);
}

}  // namespace fab::verbs

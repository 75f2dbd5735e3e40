#include "providers/shm/domain.h"

#include "fabric/types/versions.h"
#include "providers/shm/attach.h"
#include "providers/shm/layout.h"

namespace fab::shm {
namespace {

CopyMode parse_copy_mode(const std::string& text) {
  if (text == "auto") return {true, true};
  if (text == "mapped") return {true, false};
  if (text == "cma") return {false, true};
  if (text == "ring") return {false, false};
  throw Error(Errc::invalid, "shm_copy is \"" + text + "\"; it takes auto, mapped, cma or ring");
}

}  // namespace

ShmDomain::ShmDomain(Info info, std::string link, const DomainServices& services)
    : info_(std::move(info)),
      link_(std::move(link)),
      services_(services),
      mode_(parse_copy_mode(services.options.setting("shm_copy", "auto"))) {
  if (!mode_.attach || mode_.map) return;
  const int problem = attach_problem(0);
  if (is_shortage(problem))
    throw Error(Errc::no_memory, "shm_copy is \"cma\", and there is no memory to try process_vm_readv");
  if (problem != 0)
    throw Error(Errc::not_supported,
                "shm_copy is \"cma\", but the kernel forbids this process cross-memory attach "
                "(process_vm_readv); use auto");
}

PartCheck ShmDomain::part_check() const {
  return [link = link_](const PartView& part) -> PartVerdict {
    if (part.link != link) return {};
    if (Address::decode(part.bytes)) return {.usable = true, .found = {}, .proven = true};
    if (const auto layout = Address::layout_of(part.bytes); layout != 0 && layout != versions::kSharedLayout)
      return {.found = other_version(link, layout, versions::kSharedLayout)};
    throw Error(Errc::invalid, "an address is not valid: its " + link + " part cannot be read");
  };
}

std::unique_ptr<Endpoint> ShmDomain::open_endpoint(const EndpointServices& services) {
  return std::make_unique<ShmEndpoint>(services, services_, link_, mode_);
}

}  // namespace fab::shm

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/domain/domain_core.h"

namespace fab {

// Everything that this build knows to open. What cannot be used here is listed too, with the reason in
// Info::why.
std::vector<Info> discover();

// $FI_LNX_PROV_LINKS, or empty.
std::string configured_links();

// The links that `spec` may stand for here, in the order of its alternatives. Each alternative gives every
// combination of one device per provider, in the order of the devices; the last provider's device varies
// fastest. Devices that `spec` names for a provider are used together.
//
// An empty `spec` means $FI_LNX_PROV_LINKS or, if that is not set, the best links found. "lnx" means the
// variable only. $FI_LNX_DISABLE_SHM takes shm out of links with other providers. Throws Error(invalid) for a
// `spec` that cannot be parsed and for unknown providers and devices, Error(no_data) if nothing can be used
// here, and Error(too_big) beyond lnx::kMaxCombinations.
std::vector<Info> find_links(const std::string& spec);

// How several network links to one peer are used together: see lnx::LinkedOptions.
struct RailOptions {
  std::function<std::vector<double>(std::uint64_t peer, const std::vector<std::string>& links)> policy{};
  double deadline = 2;
};

// Opens the first of the links that `spec` may stand for.
std::shared_ptr<DomainCore> open_domain(const std::string& spec, DomainOptions options,
                                        RailOptions rails = {});

}  // namespace fab

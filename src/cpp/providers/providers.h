#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabric/domain/domain_core.h"

namespace fab {

// Everything that this build could open, also what cannot be used here, with the reason in Info::why.
std::vector<Info> discover();

// $FI_LNX_PROV_LINKS, or empty.
std::string configured_links();

// What `spec` may stand for here: first alternative first, and of each, every combination of one device per
// provider, in the order of the devices, the last provider's varying fastest. Devices that it names go
// together. Empty: $FI_LNX_PROV_LINKS, else the best links found; "lnx": the variable only.
// $FI_LNX_DISABLE_SHM takes shm out of links with other providers. Throws Error(invalid) for what cannot be
// parsed, unknown providers and unknown devices, Error(no_data) where nothing can be used here,
// Error(too_big) beyond lnx::kMaxCombinations.
std::vector<Info> find_links(const std::string& spec);

// How several network links to one peer are used together, as lnx::LinkedOptions says.
struct RailOptions {
  std::function<std::vector<double>(std::uint64_t peer, const std::vector<std::string>& links)> policy{};
  double deadline = 2;
};

// Opens the first that can be used.
std::shared_ptr<DomainCore> open_domain(const std::string& spec, DomainOptions options,
                                        RailOptions rails = {});

}  // namespace fab

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabric/domain_core.h"

namespace fab {

// Everything that this build could open, also what cannot be used here, with the reason in Info::why.
std::vector<Info> discover();

// $FI_LNX_PROV_LINKS, or empty.
std::string configured_links();

// What opening `spec` would give, first alternative first; empty: $FI_LNX_PROV_LINKS, else the best links
// found. Throws Error(invalid) for what cannot be parsed, unknown providers and unknown devices,
// Error(no_data) where no alternative can be used here.
std::vector<Info> find_links(const std::string& spec);

// Opens the first usable alternative.
std::shared_ptr<DomainCore> open_domain(const std::string& spec, DomainOptions options);

}  // namespace fab

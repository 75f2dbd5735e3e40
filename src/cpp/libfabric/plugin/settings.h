#pragma once

#include <string>

#include "fabric/provider.h"
#include "providers/providers.h"

// What the environment says: PYFAB_FI_* (docs/libfabric.md).
namespace fab::fi {

// PYFAB_FI_LINKS, or the links that are used without it.
std::string configured_links_or_default();
// PYFAB_FI_NAME, or "pyfab". The name stays valid.
const char* provider_name();

// How a domain is to be opened. Every other PYFAB_FI_X is the setting "x" of the domain, so that one which is
// not known is refused when the domain opens. Throws Error(invalid) for what is no number.
struct Settings {
  DomainOptions domain;
  RailOptions rails;
};
Settings settings_of_environment();

}  // namespace fab::fi

#pragma once

#include <memory>
#include <string>

#include "fabric/provider.h"

namespace fab::lnx {

// Stands in a linked domain for a link that cannot be used on this machine: it reaches nobody, and tells why.
std::unique_ptr<Domain> make_missing_link(Info info, std::string link);

}  // namespace fab::lnx

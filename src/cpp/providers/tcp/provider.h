#pragma once

#include <memory>

#include "fabric/provider.h"

namespace fab::tcp {

// One Info for each network interface with an address, loopback first.
std::unique_ptr<Provider> make_tcp_provider();

}  // namespace fab::tcp

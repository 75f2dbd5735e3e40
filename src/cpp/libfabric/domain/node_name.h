#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"

// Endpoints that processes of one user find on their node by a port, where no tcp link listens there.
namespace fab::fi {

// A name of an endpoint that is on this node at `port`. It has the length of compact names, and another
// beginning.
std::string place_on_node(std::uint16_t port);
bool is_place(std::string_view bytes) noexcept;
std::uint16_t port_of_place(std::string_view bytes);  // throws Error(invalid)

// Shows the name of an endpoint at a port for as long as it lives, or its process.
class NodeName final {
 public:
  NodeName() noexcept = default;  // shows nothing
  // Throws Error(address_in_use) if another endpoint is at the port.
  NodeName(std::uint16_t port, std::string_view name);

 private:
  OwnFd memory_, lock_, shown_;
};

// The name that is shown at the port. Throws Error(no_data).
std::string find_on_node(std::uint16_t port);

}  // namespace fab::fi

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/network/tcp_socket.h"

namespace fab {

// A network interface, as the system describes it.
struct Interface {
  std::string name;
  std::vector<SocketAddress> addresses;  // IPv4 first; no link-local ones
  bool loopback = false;
  bool up = false;
  std::string driver, pci_address, state;  // empty where there is none, as for virtual interfaces
  int numa_node = -1;
  std::uint64_t speed_bits_per_second = 0;
};

// Loopback first, then by name. Throws std::system_error when descriptors or memory run out.
std::vector<Interface> list_interfaces();

}  // namespace fab

#pragma once

#include <string>
#include <vector>

#include "base/tcp_socket.h"
#include "fabric/types.h"
#include "providers/verbs/verbs_library.h"

namespace fab::verbs {

// An RDMA device of this machine. Connections are made through its IP addresses (rdma_cm(7)).
struct Device {
  std::string name;                // "mlx5_0"
  ibv_context* context = nullptr;  // open as long as the process lives
  ibv_device_attr limits{};
  std::vector<SocketAddress> addresses;  // IPv4 first
  std::uint8_t port = 1;                 // the one that is used
  ibv_port_state state = IBV_PORT_NOP;
  ibv_mtu mtu = IBV_MTU_256;
  std::uint8_t link_layer = 0;  // IBV_LINK_LAYER_*
  std::uint64_t speed_bits_per_second = 0;
  std::uint64_t max_message = 0;  // bytes of one work request
  bool iwarp() const noexcept { return context->device->transport_type == IBV_TRANSPORT_IWARP; }
};

// Never throws; none where there are none. Looks at this machine only.
std::vector<Device> list_devices() noexcept;

// What discovery says of a device: among it, why it cannot be used.
Info describe(const Device& device);

}  // namespace fab::verbs

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/network/tcp_socket.h"
#include "fabric/types/types.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// A port of an RDMA device of this machine. Connections are made through its IP addresses (rdma_cm(7)).
struct Device {
  std::string name;                // "mlx5_0"; of a device with several ports "mlx4_0/2"
  std::string alias;               // what else it may be called: "mlx5_0/1", and "mlx4_0" for any port
  ibv_context* context = nullptr;  // open as long as the process lives
  ibv_device_attr limits{};
  std::vector<SocketAddress> addresses;  // IPv4 first
  std::uint8_t port = 1;
  ibv_port_state state = IBV_PORT_NOP;
  ibv_mtu mtu = IBV_MTU_256;
  std::uint8_t link_layer = 0;  // IBV_LINK_LAYER_*
  std::uint64_t speed_bits_per_second = 0;
  std::uint64_t max_message = 0;  // bytes of one work request
  // Reads and atomics under way at once over one connection: of the peer's, and of this side's.
  std::uint8_t reads_served() const noexcept {
    return static_cast<std::uint8_t>(std::clamp(limits.max_qp_rd_atom, 1, 128));
  }
  std::uint8_t reads_begun() const noexcept {
    return static_cast<std::uint8_t>(std::clamp(limits.max_qp_init_rd_atom, 1, 128));
  }
  bool iwarp() const noexcept { return context->device->transport_type == IBV_TRANSPORT_IWARP; }
};

// An entry of a port's GID table: what RoCE puts into packets for an IP address.
struct Gid {
  int index = 0;
  std::string bytes;  // 16; an IPv4 address is mapped into IPv6
  std::string type;   // "RoCE v2", "IB/RoCE v1"
};
std::vector<Gid> list_gids(const Device& device);

// The one of the device's addresses whose GID of RoCE v2 has this index. Throws Error(invalid), with what
// there is.
SocketAddress address_of_gid(const Device& device, const std::string& index);

// After a call of the device's failed: throws Error(no_memory) with what it does not give, and errno's
// reason.
[[noreturn]] void refuse(const Device& device, const std::string& what);

// Where it tells of completions, and of connections. Reading does not wait where there is nothing. Throw
// Error and std::system_error.
OwnCompletionChannel open_completion_channel(const Device& device);
OwnEventChannel open_event_channel(const Device& device);

// Never throws; none where there are none. Looks at this machine only.
std::vector<Device> list_devices();

// To be called before anything is made with the device: covers for the lifetime of the process what its
// driver gets wrong.
void prepare(const Device& device);

// What discovery says of a device: among it, why it cannot be used.
Info describe(const Device& device);

}  // namespace fab::verbs

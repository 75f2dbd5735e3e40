#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/network/tcp_socket.h"
#include "fabric/types/types.h"
#include "providers/verbs/device/library.h"

namespace fab::verbs {

// A port of an RDMA device of this machine. Connections are made through its IP addresses (rdma_cm(7)), or by
// an exchange over tcp (exchange/).
struct Device {
  // "mlx5_0" or, if the device has several ports, "mlx4_0/2".
  std::string name;
  // Another name that users may give: "mlx5_0/1" or, for any port of the device, "mlx4_0".
  std::string alias;
  ibv_context* context = nullptr;  // stays open as long as the process lives
  ibv_device_attr limits{};
  std::vector<SocketAddress> addresses;  // IPv4 first
  std::uint8_t port = 1;
  ibv_port_state state = IBV_PORT_NOP;
  ibv_mtu mtu = IBV_MTU_256;
  std::uint8_t link_layer = 0;  // IBV_LINK_LAYER_*
  std::uint16_t lid = 0;        // of InfiniBand; 0: the subnet manager has given none
  bool needs_gid = false;       // even where a LID would do
  std::uint64_t speed_bits_per_second = 0;
  std::uint64_t max_message = 0;  // bytes of one work request
  // How many reads and atomics of the peer, and of this side, may be under way at once over one connection.
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
  std::string bytes;  // 16 bytes; an IPv4 address is mapped into IPv6
  std::string type;   // "RoCE v2", "IB/RoCE v1"
};
std::vector<Gid> list_gids(const Device& device);
// The one by which peers reach the port without IP: on RoCE that of v2 that reaches farthest, or else one of
// v1. Nothing where queue pairs are connected in other ways (iWARP).
std::optional<Gid> usual_gid(const Device& device);
// Whether peers can reach the port without IP.
bool reached_without_ip(const Device& device);

// The address of the device whose GID of RoCE v2 has this index. Throws Error(invalid) that lists the indices
// there are.
SocketAddress address_of_gid(const Device& device, const std::string& index);

// For a call of the device that has just failed. Throws Error(no_memory), or Error(too_many_files) if errno
// says so. The message says what the device does not give, and errno's reason.
[[noreturn]] void refuse(const Device& device, const std::string& what);

// Throws Error.
OwnPd open_protection_domain(const Device& device);

// Lets reading from an empty channel of a device fail in place of waiting. Throws std::system_error.
void make_nonblocking(int fd);

// Open the channels in which the device tells of completions, and rdma_cm of connections. Reading from an
// empty channel does not wait. Both throw Error and std::system_error.
OwnCompletionChannel open_completion_channel(const Device& device);
OwnEventChannel open_event_channel(const Device& device);

// The ports of this machine's devices, sorted by name. Empty if there are none or they cannot be listed.
// Throws only for a shortage of memory or descriptors.
std::vector<Device> list_devices();

// Works around a fault of the soft-iWARP driver for the lifetime of the process. To be called before anything
// is made with the device.
void prepare(const Device& device);

// What discovery says of a device. If it cannot be used, Info::why has the reason.
Info describe(const Device& device);

}  // namespace fab::verbs

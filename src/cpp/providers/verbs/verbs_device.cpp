#include "providers/verbs/verbs_device.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/interfaces.h"
#include "base/process.h"
#include "fabric/peer_id.h"

namespace fab::verbs {
namespace {

// As rdma_cm would choose a device for a connection from each of this machine's addresses.
std::map<ibv_context*, std::vector<SocketAddress>> addresses_by_device() {
  std::map<ibv_context*, std::vector<SocketAddress>> found;
  const OwnEventChannel events(library().create_event_channel());
  if (!events) return found;
  for (const Interface& interface : list_interfaces())
    for (const SocketAddress& address : interface.addresses) {
      rdma_cm_id* made = nullptr;
      if (!interface.up || interface.loopback ||
          library().create_id(events.get(), &made, nullptr, RDMA_PS_TCP))
        continue;
      const OwnId id(made);
      const SocketAddress any_port = address.with_port(0);
      if (library().bind_addr(made, const_cast<sockaddr*>(any_port.get())) == 0 && made->verbs)
        found[made->verbs].push_back(address);
    }
  return found;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::filesystem::path sysfs(const Device& device) {
  return std::filesystem::path("/sys/class/infiniband") / device.name;
}

std::uint64_t speed_of(const ibv_port_attr& port) noexcept {
  static constexpr double kLaneGigabits[] = {2.5, 5, 10, 10, 14.0625, 25.78125, 53.125, 106.25};
  static constexpr unsigned kLanes[] = {1, 4, 8, 12, 2};
  const auto bit = [](unsigned value) { return static_cast<unsigned>(std::countr_zero(value)); };
  if (port.active_speed == 0 || port.active_width == 0) return 0;
  const unsigned speed = bit(port.active_speed), width = bit(port.active_width);
  if (speed >= std::size(kLaneGigabits) || width >= std::size(kLanes)) return 0;
  return static_cast<std::uint64_t>(kLaneGigabits[speed] * 1e9) * kLanes[width];
}

// The port that can be used, or else the first one.
void choose_port(Device& device) {
  for (std::uint8_t number = 1; number <= device.limits.phys_port_cnt; ++number) {
    ibv_port_attr port{};
    if (library().query_port(device.context, number, reinterpret_cast<_compat_ibv_port_attr*>(&port)) != 0)
      continue;
    if (number > 1 && (device.state == IBV_PORT_ACTIVE || port.state != IBV_PORT_ACTIVE)) continue;
    device.port = number;
    device.state = port.state;
    device.mtu = port.active_mtu;
    device.link_layer = port.link_layer;
    device.speed_bits_per_second = speed_of(port);
    device.max_message = port.max_msg_sz;
  }
}

const char* layer_name(const Device& device) noexcept {
  if (device.iwarp()) return "iWARP";
  return device.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" : "RoCE";
}

std::string problem_of(const Device& device) {
  if (device.state != IBV_PORT_ACTIVE)
    return device.name + " has no active port; check the cable and that the interface is up (`rdma link`)";
  if (device.addresses.empty())
    return device.name +
           " has no IP address that connections could be made through; give one to its network interface "
           "(for "
           "InfiniBand: IPoIB)";
  return "";
}

}  // namespace

std::vector<Device> list_devices() noexcept try {
  std::vector<Device> devices;
  std::error_code error;  // nothing there: no need for the libraries
  if (std::filesystem::is_empty("/sys/class/infiniband", error) || error) return devices;
  // rdma_cm keeps the devices that it opened: those of the parent process are not for its children.
  static const std::uint32_t opened_in = fork_generation();
  if (!find_library() || opened_in != fork_generation()) return devices;
  int count = 0;
  ibv_context** const contexts = library().get_devices(&count);
  if (!contexts) return devices;
  const auto addresses = addresses_by_device();
  for (int i = 0; i < count; ++i) {
    Device device;
    device.context = contexts[i];
    device.name = library().get_device_name(contexts[i]->device);
    if (library().query_device(contexts[i], &device.limits) != 0) continue;
    choose_port(device);
    if (const auto found = addresses.find(contexts[i]); found != addresses.end())
      device.addresses = found->second;
    devices.push_back(std::move(device));
  }
  library().free_devices(contexts);  // the list; rdma_cm keeps the devices open
  std::ranges::sort(devices, {}, &Device::name);
  return devices;
} catch (const std::exception&) {
  return {};
}

Info describe(const Device& device) {
  Info info;
  info.provider = "verbs";
  info.fabric = device.iwarp()                                   ? "iwarp"
                : device.link_layer == IBV_LINK_LAYER_INFINIBAND ? "infiniband"
                                                                 : "roce";
  info.domain = device.name;
  info.addr_format = "bundle";
  info.caps = caps::kRma | caps::kAtomic | caps::kRead | caps::kWrite | caps::kRemoteRead |
              caps::kRemoteWrite | caps::kRmaEvent | caps::kRemoteData | caps::kMessage | caps::kTagged |
              caps::kDirectedReceive | caps::kMultiReceive | caps::kNamedReceive | caps::kRmaPmem |
              caps::kLocalComm | caps::kRemoteComm;
  info.max_group_id = kMaxGroupId;
  info.inject_size = 4096;
  info.links = {"verbs:" + device.name};
  const auto folder = sysfs(device);
  NicInfo nic;
  nic.name = device.name;
  nic.speed_bits_per_second = device.speed_bits_per_second;
  std::error_code error;
  if (const auto bus = std::filesystem::read_symlink(folder / "device", error); !error)
    nic.pci_address = bus.filename().string();
  if (const auto driver = std::filesystem::read_symlink(folder / "device" / "driver", error); !error)
    nic.driver = driver.filename().string();
  const std::string node = first_line(folder / "device" / "numa_node");
  std::from_chars(node.data(), node.data() + node.size(), nic.numa_node);  // none: stays -1
  nic.state = std::string(device.state == IBV_PORT_ACTIVE ? "up" : "down") + ", " + layer_name(device) +
              ", MTU " + std::to_string(128u << device.mtu);
  if (const std::string gid =
          first_line(folder / "ports" / std::to_string(device.port) / "gid_attrs/types/0");
      !gid.empty())
    nic.state += ", GID " + gid;
  info.nics = {std::move(nic)};
  if (!device.addresses.empty()) info.src_addr = device.addresses.front().host();
  info.why = problem_of(device);
  info.usable = info.why.empty();
  return info;
}

}  // namespace fab::verbs
